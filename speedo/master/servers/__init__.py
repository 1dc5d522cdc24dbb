"""A center whose ranges several servers have: what the master asks of them, and how each answers."""
