"""The program of a node's actors: Ray's own, whose file is the first argument, after a lean import of Ray."""

from __future__ import annotations

import gc
import os
import runpy
import sys


def main() -> None:
    """Becomes Ray's program, as if Python had been started with its file."""
    program = sys.argv.pop(1)
    sys.path[0] = os.path.dirname(program)  # ours would hide modules of other packages
    gc.disable()  # what is imported stays
    from speedo.actors.ray_node.lean_import import import_ray
    from speedo.actors.ray_node.private_names import leave_addons_out

    import_ray()
    leave_addons_out()
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000)  # as in the commands: imports are no garbage
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
