"""A script of the user's as a worker of a run: `speedo.join`."""
