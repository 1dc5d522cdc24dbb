"""Runs the driver's thread on the core of the worker that waits for it.

The kernel wakes a thread on the core where it ran last. For the driver that is often the core of another worker,
which is then interrupted, while the core of the waiting worker is idle (`bench/processor.py` measures how long). So a
worker that is about to wait moves the driver's thread to its own core, and the driver removes that restriction when
it is awake. This helps only while the workers use all cores that the driver may use.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_current_core: Final[Callable[[], int]] = ctypes.CDLL(None).sched_getcpu
_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group (man 7 unix, SO_PEERCRED)


@dataclass(frozen=True, slots=True)
class DriverThread:
    """The thread and process that handle results, and the cores to which it may be moved: none if it must stay."""

    process: int
    thread: int
    cores: list[int]


class DriverCore:
    """The master's side."""

    def __init__(self) -> None:
        self._cores: set[int] = set()
        self._thread = 0
        self._drawn = False
        self._at_rest = self._drawable = DriverThread(os.getpid(), 0, [])

    def awake(self) -> None:
        """Called by the driver's thread after every wait: it may use all its cores again."""
        if not self._thread:
            self._cores = set(os.sched_getaffinity(0))
            self._thread = threading.get_native_id()
            self._at_rest = DriverThread(os.getpid(), self._thread, [])
            self._drawable = DriverThread(os.getpid(), self._thread, sorted(self._cores))
        elif self._drawn:
            with suppress(OSError):  # these cores may be gone
                os.sched_setaffinity(0, self._cores)

    def for_workers(self, count: int) -> DriverThread:
        """What workers need to know while this many are on this machine; the same object until it changes."""
        draw = self._thread != 0 and count >= len(self._cores)
        self._drawn = self._drawn or draw
        return self._drawable if draw else self._at_rest


class Draw:
    """The worker's side, for the master at the other end of this socket.

    A thread number means another thread in another PID namespace, where the master's own number differs, too.
    """

    def __init__(self, driver: DriverThread, channel: socket.socket) -> None:
        credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        known = _CREDENTIALS.unpack(credentials)[0] == driver.process
        self._thread = driver.thread
        self._cores = frozenset(driver.cores if known else ())

    def __call__(self) -> None:
        """Move the driver's thread to this thread's core until it is awake."""
        if self._cores:
            core = _current_core()
            if core in self._cores:
                with suppress(OSError):  # it is gone, or not ours to move
                    os.sched_setaffinity(self._thread, {core})
