"""Watching and steering a run."""
