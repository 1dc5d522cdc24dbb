"""The core that handles a result: that of the worker which waits for it.

The kernel wakes a thread where it ran last. Of the driver's that is often the core of another worker, which then stands
still, while the core of the one that waits has nothing to do (`bench/processor.py` tells how long). So a worker that is
about to wait draws the driver to its own core, and the driver, once awake, lets itself go. That is of use only while
workers take all cores that the driver may use: on one to spare it disturbs nobody.
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
    """Which thread of which process handles results, and the cores that it may be drawn to: none if it is to stay."""

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
        """To be called by the driver's thread, whenever it has waited: it may run again where it might at first."""
        if not self._thread:
            self._cores = set(os.sched_getaffinity(0))
            self._thread = threading.get_native_id()
            self._at_rest = DriverThread(os.getpid(), self._thread, [])
            self._drawable = DriverThread(os.getpid(), self._thread, sorted(self._cores))
        elif self._drawn:
            with suppress(OSError):  # these cores may be gone
                os.sched_setaffinity(0, self._cores)

    def for_workers(self, count: int) -> DriverThread:
        """What workers are to know while there are so many on this machine; the same object until it changes."""
        draw = self._thread != 0 and count >= len(self._cores)
        self._drawn = self._drawn or draw
        return self._drawable if draw else self._at_rest


class Draw:
    """The worker's side, for the master at the other end of this socket.

    A number of a thread means another one in another namespace of processes, in which the master's own is another, too.
    """

    def __init__(self, driver: DriverThread, channel: socket.socket) -> None:
        credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        known = _CREDENTIALS.unpack(credentials)[0] == driver.process
        self._thread = driver.thread
        self._cores = frozenset(driver.cores if known else ())

    def __call__(self) -> None:
        """Have the driver's thread run on this thread's core until it is awake."""
        if self._cores:
            core = _current_core()
            if core in self._cores:
                with suppress(OSError):  # it is gone, or not ours to move
                    os.sched_setaffinity(self._thread, {core})
