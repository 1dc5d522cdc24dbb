"""The commands: click, and nothing else."""

from speedo.system.import_order import put_ours_first

put_ours_first()  # before click, or anything else of ours that a folder on PYTHONPATH may hide
