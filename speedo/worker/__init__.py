"""The worker: one turn."""
