"""The folder of a Ray node, and the shared memory beside it."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from speedo.system.private_folders import make_private_folder, unsafe

OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024  # Ray's least: nothing of ours travels through it
RAY_FOLDER: Final = "r"  # in a private folder: Ray makes its own one writable for everybody
# The longest name of a socket in there, as Ray chooses it, and what the name of a socket may have.
_SOCKET: Final = f"/speedo-ray-12345678/{RAY_FOLDER}/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"
_LONGEST: Final = 107


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
