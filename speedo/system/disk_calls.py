"""Which call to a disk each thread of this process is in: so another thread can say that it hangs."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from speedo.system import daemon_thread

_under_way: dict[int, tuple[float, Path]] = {}  # by thread


class on_disk:
    """Inside, this thread waits for the disk of `path`."""

    __slots__ = ("_me", "_path")

    def __init__(self, path: Path) -> None:
        self._path, self._me = path, threading.get_ident()

    def __enter__(self) -> None:
        if self._me in _under_way:
            self._me = 0  # the outer one counts
        else:
            _under_way[self._me] = (time.monotonic(), self._path)

    def __exit__(self, *error: object) -> None:
        _under_way.pop(self._me, None)


def hangs(thread: int | None, limit_s: float | None = None) -> str:
    """What the thread of this number has waited for longer than `HUNG_S`, in a sentence; empty if for nothing."""
    since, path = _under_way.get(thread or 0, (float("inf"), Path()))
    waited = time.monotonic() - since
    if waited <= (daemon_thread.HUNG_S if limit_s is None else limit_s):
        return ""
    return f"{path} has not answered for {waited:.0f} s: its disk hangs; look at the disk or the connection to it"
