"""The folder in shared memory for the processes of a run on one machine; it is removed when the run ends."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from speedo.errors import ConfigError
from speedo.system.background_process import start_grandchild_keeper
from speedo.system.private_folders import make_private_folder

MEMORY: Final = Path("/dev/shm")


class SharedMemory:
    """A context in which a folder for a `SharedMemoryStore` exists; else `path` is None, and `problem` says why.

    It needs `room_bytes` of free space. A small shell removes the folder, also if this process is killed.
    """

    def __init__(self, room_bytes: int, place: Path = MEMORY) -> None:
        self.path: Path | None = None
        self.problem = ""
        self._room_bytes, self._place = room_bytes, place
        self._keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SharedMemory:
        try:
            if free_in(self._place) < self._room_bytes:
                self.problem = (
                    f"{self._place} has less than {self._room_bytes / 1e6:.0f} MB to spare"
                )
                return self
            path = make_private_folder("speedo-", self._place)
        except (OSError, ConfigError) as error:
            self.problem = str(error)
            return self
        self.path = path
        self._keeper = start_grandchild_keeper("speedo-memory", path)
        return self

    def __exit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._keeper.communicate()  # the end of its input is its signal


def free_in(folder: Path) -> int:
    """Bytes that are free in the file system of this folder. Raises `OSError`."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def room_for(workers: int, model_bytes: int, kept: int = 0) -> int:
    """The most bytes that a run needs in shared memory: payloads, versions that are still read, and empty slots.

    Beside each of the last versions so many vectors are `kept`.
    """
    return model_bytes * (3 * workers + 4 + 3 * kept)
