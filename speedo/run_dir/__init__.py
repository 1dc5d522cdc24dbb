"""The files that a run leaves and goes on from."""
