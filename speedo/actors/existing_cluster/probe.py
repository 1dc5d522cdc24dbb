"""Tries to join a Ray cluster, as a process: `python -m speedo.actors.existing_cluster.probe ADDRESS`.

Where there is no cluster, or it refuses the token, Ray ends the process that asks, after words on standard error. So a
child asks first. It prints nothing, and its status is 0, if the cluster takes it; an exception's text is on standard
output.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import Final

from speedo.actors.ray_node.words import REFUSED, end_at

PROBE_S: Final = 60.0
# In Ray's words: the token, a port where nobody listens.
_ENDS: Final = (*REFUSED, "AuthenticationError", "Failed to connect to GCS")


def why_not(address: str) -> str:
    """Why this machine cannot join, in Ray's words; empty if it can."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "speedo.actors.existing_cluster.probe", address],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        said, words = child.communicate(timeout=PROBE_S)
    except subprocess.TimeoutExpired:
        return f"no answer within {PROBE_S:.0f} s"
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    if child.returncode == 0:
        return ""
    lines = (said or words).strip().splitlines()
    return " ".join(lines[-1].split()) if lines else f"its test ended with {child.returncode}"


def main() -> None:
    """Joins, says what went wrong, and ends."""
    end_at(*_ENDS)
    import ray

    try:
        ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:
        os.write(1, f"{type(error).__name__}: {' '.join(str(error).split())}\n".encode())
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
