"""Which call to a disk each thread of this process is in: so another thread can say that it hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from speedo.system import daemon_thread

_under_way: dict[int, tuple[float, Path]] = {}  # by thread


@contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Inside, this thread waits for the disk of `path`."""
    me = threading.get_ident()
    if me in _under_way:
        yield
        return
    _under_way[me] = (time.monotonic(), path)
    try:
        yield
    finally:
        del _under_way[me]


def hangs(thread: int | None, limit_s: float | None = None) -> str:
    """What the thread of this number has waited for longer than `HUNG_S`, in a sentence; empty if for nothing."""
    since, path = _under_way.get(thread or 0, (float("inf"), Path()))
    waited = time.monotonic() - since
    if waited <= (daemon_thread.HUNG_S if limit_s is None else limit_s):
        return ""
    return f"{path} has not answered for {waited:.0f} s: its disk hangs; look at the disk or the connection to it"
