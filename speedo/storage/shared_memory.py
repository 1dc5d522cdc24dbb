"""The folder in which the processes of a run on one machine share memory, for as long as the run lasts."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
_KEEPER: Final = 'read -r _; exec rm -rf -- "$1"'


class SharedMemory:
    """A context in which a folder for a `SharedMemoryStore` exists, if `room_bytes` are free; else `path` is None.

    A small shell removes the folder, also if this process is killed.
    """

    def __init__(self, room_bytes: int, place: Path = MEMORY) -> None:
        self.path: Path | None = None
        self._room_bytes, self._place = room_bytes, place
        self._keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SharedMemory:
        with suppress(OSError):
            status = os.statvfs(self._place)
            if status.f_bavail * status.f_frsize >= self._room_bytes:
                self.path = Path(tempfile.mkdtemp(prefix="speedo-", dir=self._place))
                self._keeper = subprocess.Popen(
                    ["/bin/sh", "-c", _KEEPER, "speedo-memory", str(self.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
        return self

    def __exit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._keeper.communicate()  # the end of its input is its signal


def room_for(workers: int, model_bytes: int) -> int:
    """Bytes that a run takes in shared memory at most: payloads, versions that are still read, and spare files."""
    return model_bytes * (3 * workers + 4)
