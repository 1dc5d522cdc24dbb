"""The run directory: the files of a run, and what is needed to resume it."""
