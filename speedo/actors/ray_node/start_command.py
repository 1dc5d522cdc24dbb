"""Ray's command, which takes 127.0.0.1 as it is given: `python -m speedo.actors.ray_node.start_command start ...`."""

from __future__ import annotations

import sys
from importlib.metadata import distribution
from typing import Any

from speedo.actors.ray_node.literal_addresses import note, take_addresses_literally


def main() -> None:
    """Runs the program that Ray installs as `ray`."""
    if not take_addresses_literally():
        print(note(), flush=True)
    # With gRPC's Python package, which others bring, Ray would also serve its clients from elsewhere.
    sys.modules["grpc"] = None  # type: ignore[assignment]
    (program,) = (
        one
        for one in distribution("ray").entry_points
        if one.group == "console_scripts" and one.name == "ray"
    )
    command: Any = program.load()
    sys.argv[0] = "ray"
    command()


if __name__ == "__main__":
    main()
