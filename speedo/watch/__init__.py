"""Status, console, control socket and plot of a run."""
