"""A run put together."""
