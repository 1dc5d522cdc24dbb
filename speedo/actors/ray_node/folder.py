"""The folder of a Ray node, and the shell that cleans up there: it ends what remains and removes the folder.

When a raylet is killed, its child processes have no parent any more and may search for the raylet and the master for
up to a minute. Each of them holds files in the node's folder open, and that is how they are found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from speedo.system.background_process import start_keeper
from speedo.system.private_folders import make_private_folder, unsafe

OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024  # Ray's least: nothing of ours travels through it
RAY_FOLDER: Final = "r"  # in a private folder: Ray makes its own one writable for everybody
# The longest name of a socket in there, as Ray chooses it, and what the name of a socket may have.
_SOCKET: Final = f"/speedo-ray-12345678/{RAY_FOLDER}/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"
_LONGEST: Final = 107
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


def ray_folder(stack: ExitStack) -> str:
    """A new private folder for a node, removed when `stack` closes."""
    folder = make_private_folder("speedo-ray-", place_for_sockets())
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return str(folder)


def place_for_sockets() -> Path | None:
    """The temporary folder, or another that is safe and whose name is short enough; None if there is none."""
    for name in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):
        place = Path(name).resolve()
        short = len(os.fsencode(place)) + len(_SOCKET) <= _LONGEST
        if short and os.access(place, os.W_OK) and unsafe(place) is None:
            return place
    return None


@contextmanager
def kept(folder: str) -> Iterator[None]:
    """At the end of this context only this process still has files of the folder open, and the folder is removed."""
    keeper = start_keeper("speedo-ray", os.path.realpath(folder), script=_END_PROCESSES)
    try:
        yield
    finally:
        with suppress(subprocess.TimeoutExpired):
            keeper.communicate(b"stopped\n", _WAIT_S)
