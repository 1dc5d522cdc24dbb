"""The commands: click, and nothing else."""
