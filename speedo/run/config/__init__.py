"""The options of a run: declarations, defaults, checks, written forms."""
