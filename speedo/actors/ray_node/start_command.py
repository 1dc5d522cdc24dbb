"""Ray's command as we need it, which ends once the node is there: `python -m ... start ...`.

Its last line names the processes of the node.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import distribution
from typing import Any, Final

import psutil

from speedo.actors.ray_node.private_names import leave_agents_out, note, take_addresses_literally

STARTED: Final = "started: "


def main() -> None:
    """Runs the program that Ray installs as `ray`."""
    if not take_addresses_literally():
        print(note(), flush=True)
    leave_agents_out()
    # With gRPC's Python package, which others bring, Ray would also serve its clients from elsewhere.
    sys.modules["grpc"] = None  # type: ignore[assignment]
    (program,) = (
        one
        for one in distribution("ray").entry_points
        if one.group == "console_scripts" and one.name == "ray"
    )
    command: Any = program.load()
    sys.argv[0] = "ray"
    try:
        command()
    except SystemExit as end:
        if end.code:
            raise
    started = {process.name(): process.pid for process in psutil.Process().children()}
    print(f"{STARTED}{json.dumps(started)}", flush=True)


if __name__ == "__main__":
    main()
