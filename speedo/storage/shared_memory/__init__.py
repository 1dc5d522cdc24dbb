"""The store in the shared memory of one machine."""
