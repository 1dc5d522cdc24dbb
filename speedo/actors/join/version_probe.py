"""Asks a master's Ray for its versions, as a process: `python -m speedo.actors.join.version_probe HOST:PORT`.

Prints one line of JSON. If the master refuses the token, Ray says so on standard error and ends the process.
"""

from __future__ import annotations

import json
import os
import platform
import sys

from speedo.actors.ray_node.words import REFUSED, end_at


def main() -> None:
    """Asks, prints the versions, and ends."""
    end_at(*REFUSED)
    import ray

    from speedo.actors.ray_node.private import find

    ours = {"Ray": ray.__version__, "Python": platform.python_version()}
    theirs = ours  # a Ray that cannot be asked says so itself when the node joins
    client, metadata_of = find("GcsClient"), find("get_cluster_metadata")
    if client is not None and metadata_of is not None:
        metadata = metadata_of(client(address=sys.argv[1]))
        theirs = {"Ray": metadata["ray_version"], "Python": metadata["python_version"]}
    answer = {"theirs": theirs, "ours": ours}
    print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
