"""Ray's command as we need it, which ends once the node is there: `python -m ... start ...`.

Its last line names the processes of the node.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from importlib.metadata import EntryPoint, distribution
from typing import Any, Final

import psutil

from speedo.actors.ray_node.lean_import import left_for_later
from speedo.actors.ray_node.private_names import note, start_lean_nodes, take_addresses_literally

STARTED: Final = "started: "
# Ray's command does without these where they cannot be imported.
_OTHER_COMMANDS: Final = (
    "ray.util.state.state_cli",
    "ray.dashboard.modules.job.cli",
    "ray.serve.scripts",
)
# A node without it has agents of less; those of ours have none (private_names).
_OF_AGENTS: Final = "ray.dashboard.optional_deps"


def main() -> None:
    """Runs the program that Ray installs as `ray`."""
    gc.disable()  # the process is over in a second
    # Also while it runs: with gRPC's Python package, Ray would serve its clients from elsewhere.
    with left_for_later():
        if not take_addresses_literally():
            print(note(), flush=True)
        if start_lean_nodes():
            sys.modules[_OF_AGENTS] = None  # type: ignore[assignment]
        (entry,) = (
            one
            for one in distribution("ray").entry_points
            if one.group == "console_scripts" and one.name == "ray"
        )
        command = load_command(entry)
        sys.argv[0] = "ray"
        try:
            command()
        except SystemExit as end:
            if end.code:
                raise
    started = {process.name(): process.pid for process in psutil.Process().children()}
    print(f"{STARTED}{json.dumps(started)}", flush=True)
    sys.stderr.flush()
    os._exit(0)  # Ray's own end imports more than its start


def load_command(entry: EntryPoint) -> Any:
    """The command, without the others if it can do without them."""
    left_out = dict.fromkeys(_OTHER_COMMANDS)
    sys.modules.update(left_out)  # type: ignore[arg-type]
    try:
        return entry.load()
    except ImportError:
        for name in left_out:
            sys.modules.pop(name, None)
        return entry.load()


if __name__ == "__main__":
    main()
