"""The commands: click, and nothing else."""

import gc

from speedo.system.import_order import put_ours_first

# At its usual 700, a sixth of the time of the imports is a search for garbage.
gc.set_threshold(50_000)
put_ours_first()  # before click, or anything else of ours that a folder on PYTHONPATH may hide
