"""The master: decides and merges."""
