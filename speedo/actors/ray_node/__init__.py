"""Everything that adapts Ray: its node, its ports, its session."""
