"""The virtual cluster."""
