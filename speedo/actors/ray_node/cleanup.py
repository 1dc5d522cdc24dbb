"""Cleans up behind a Ray node: a small shell ends the remaining processes and removes the node's folder.

When a raylet is killed, its child processes have no parent any more and may search for the raylet and the master for
up to a minute. Each of them holds files in the node's folder open, and that is how they are found.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from speedo.system.background_process import start_keeper

_WAIT_S: Final = 15.0
# What no signal ends, as a process that waits for a broken disk, is left after 8 s. $PPID is the process that
# started us.
_END_PROCESSES: Final = """
tries=0
read -r _
while [ $tries -lt 80 ]; do
    left=$(find /proc/[0-9]*/fd -maxdepth 1 -printf '%h %l\\n' | grep -F " $1/" | cut -d/ -f3 | grep -vx $PPID)
    [ -n "$left" ] || break
    kill -KILL $left
    tries=$((tries + 1))
    sleep 0.1
done
"""


@contextmanager
def kept(folder: str) -> Iterator[None]:
    """At the end of this context only this process still has files of the folder open, and the folder is removed."""
    keeper = start_keeper("speedo-ray", os.path.realpath(folder), script=_END_PROCESSES)
    try:
        yield
    finally:
        with suppress(subprocess.TimeoutExpired):
            keeper.communicate(b"stopped\n", _WAIT_S)
