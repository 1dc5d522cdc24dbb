"""Bytes under keys: the interface, the names of the keys, and the stores."""
