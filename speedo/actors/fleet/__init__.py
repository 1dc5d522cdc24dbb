"""The nodes of a cluster that have workers of a run: which, who keeps them there, and what holds places for later."""
