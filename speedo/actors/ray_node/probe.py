"""Tries to join a Ray cluster, as a process: `python -m speedo.actors.ray_node.probe ADDRESS`.

Where there is no cluster, or it refuses the token, Ray ends the process that asks, after words on standard error. So a
child asks first. It prints nothing, and its status is 0, if the cluster takes it; an exception's text is on standard
output.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Final

from speedo.actors.ray_node.lean_import import import_ray
from speedo.actors.ray_node.private_names import take_addresses_literally

PROBE_S: Final = 60.0
# In Ray's words: the token, a port where nobody listens.
_ENDS: Final = (
    "InvalidAuthToken",
    "Unauthenticated",
    "AuthenticationError",
    "Failed to connect to GCS",
)


def why_not(
    address: str, environment: Mapping[str, str] | None = None, *, literally: bool = False
) -> str:
    """Why a program here, with this environment or ours, cannot join, in Ray's words; empty if it can.

    `literally`: the address is of a node of ours, which may be on loopback alone.
    """
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "speedo.actors.ray_node.probe", address]
        + ["literally"] * literally,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
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
    _end_at(*_ENDS)
    try:
        ray = import_ray()
        if len(sys.argv) > 2:
            take_addresses_literally()
        ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:
        os.write(1, f"{type(error).__name__}: {' '.join(str(error).split())}\n".encode())
        os._exit(1)
    os._exit(0)


def _end_at(*ends: str) -> None:
    """From now on pass standard error on, and end this process with status 1 at a line with one of these words:
    Ray would try again for 20 s and more."""
    reading, writing = os.pipe()
    former = os.dup(2)
    os.dup2(writing, 2)

    def watch() -> None:
        with os.fdopen(reading, errors="replace") as words:
            for line in words:
                os.write(former, line.encode())
                if any(one in line for one in ends):
                    os._exit(1)

    threading.Thread(target=watch, name="words", daemon=True).start()


if __name__ == "__main__":
    main()
