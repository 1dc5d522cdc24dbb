"""How a machine finds, joins and keeps a master."""
