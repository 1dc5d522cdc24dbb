"""Assembles a run: preparation, settings, training, result."""
