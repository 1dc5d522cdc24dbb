"""Asks a master's Ray for its versions, as a process: `python -m speedo.actors.join.version_probe HOST:PORT`.

Prints one line of JSON. If the master refuses the token, Ray says so on standard error and ends the process.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import threading


def main() -> None:
    """Reads standard error while Ray connects: Ray retries a refused token for 20 s and reports it only there."""
    reading, writing = os.pipe()
    former = os.dup(2)
    os.dup2(writing, 2)

    def watch() -> None:
        with os.fdopen(reading, errors="replace") as words:
            for line in words:
                os.write(former, line.encode())
                if "InvalidAuthToken" in line or "Unauthenticated" in line:
                    os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
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
