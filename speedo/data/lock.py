"""Locks a dataset folder, so that one process at a time prepares it.

A lock file beside the folder makes a second process wait. The kernel releases the lock of a process that dies, so a
stale lock cannot block. The process that holds the lock removes the file at the end.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from speedo.errors import DataError

LOCK_WAIT_SECONDS: Final = 1800.0
_POLL_SECONDS: Final = 0.1


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other process prepares this folder; raises DataError after `LOCK_WAIT_SECONDS`."""
    path = folder.parent / f".{folder.name}.lock"
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        with path.open("a+") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    stream.seek(0)
                    holder = stream.read().strip() or "another process"
                    raise DataError(
                        f"{holder} has been preparing {folder} for more than {LOCK_WAIT_SECONDS:g} s: "
                        "wait for it, or end it"
                    ) from None
                time.sleep(_POLL_SECONDS)
                continue
            if not _is_at(stream, path):
                continue  # who held it before has removed it: what we locked is nobody's lock
            try:
                stream.truncate(0)
                stream.write(f"process {os.getpid()} on {os.uname().nodename}\n")
                stream.flush()
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_at(stream: IO[str], path: Path) -> bool:
    """Whether the path still leads to this open file."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False
