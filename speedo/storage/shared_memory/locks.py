"""Numbered locks between the processes of one machine: bytes of one file, locked by open file description.

The kernel lets go of a lock when its process ends, however it ends, so a killed holder blocks nobody. Unlike POSIX
record locks these also keep two threads of one process apart. Source: fcntl(2), "Open file description locks".
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from speedo.storage.shared_memory.slots import FILE_MODE

POLL_S: Final = 0.001
_STRUCT: Final = struct.Struct("@hhqqi4x")  # struct flock: type, whence, start, length, process
_MEMBERS: Final = 0  # the byte that everyone who has the file open holds a shared lock of


class SharedLocks:
    """The locks of `path`, which is made if it is missing. Raises `OSError`. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            self._set(fcntl.F_RDLCK, _MEMBERS)
        except OSError:
            self.close()
            raise

    def have_others(self) -> bool:
        """Whether anyone else has these locks open now."""
        asked = _STRUCT.pack(fcntl.F_WRLCK, os.SEEK_SET, _MEMBERS, 1, 0)
        found = fcntl.fcntl(self._file, fcntl.F_OFD_GETLK, asked)
        return bool(_STRUCT.unpack(found)[0] != fcntl.F_UNLCK)

    @contextmanager
    def held(self, number: int, patience_s: float) -> Iterator[bool]:
        """Hold lock `number`, 0 or more, inside; False if it did not become free in time."""
        end = time.monotonic() + patience_s
        while not (mine := self._try(1 + number)) and time.monotonic() < end:
            time.sleep(POLL_S)
        try:
            yield mine
        finally:
            if mine:
                with suppress(OSError):
                    self._set(fcntl.F_UNLCK, 1 + number)

    def close(self) -> None:
        """Let go of all; may be called twice."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _try(self, byte: int) -> bool:
        try:
            self._set(fcntl.F_WRLCK, byte)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _set(self, kind: int, byte: int) -> None:
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _STRUCT.pack(kind, os.SEEK_SET, byte, 1, 0))
