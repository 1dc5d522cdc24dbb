"""Memory that the processes of one host share, and counters by which they wait for each other.

Each member has a file in the folder and writes only there: its counters, what it calls, and its buffers. All map all
files; once they have, the names are removed, so that the memory goes with the last process that has it.

A member writes its buffers, then raises a counter; the others see the counter, then read the buffers
(`speedo.system.memory_fence`).
"""

from __future__ import annotations

import mmap
import os
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from speedo.errors import ConfigError, TeamBrokenError
from speedo.system.memory_fence import memory_fence

PID, SIZE, MAPPED, LEFT, CALLS, FILLED, COMBINED = range(7)  # the counters, in one cache line
CALLS_AT: Final = 1024  # what the member calls, for an even and for an odd call
CALL_BYTES: Final = 1024
BUFFERS_AT: Final = 4096

YIELDS: Final = 50  # times to let others run, before a waiting member sleeps
LEAST_PAUSE_S: Final = 20e-6
MOST_PAUSE_S: Final = 2e-3
LOOK_EVERY_S: Final = 0.02  # for members that are gone
ASK_EVERY_S: Final = 0.5  # whether one has left the run that has not come yet


class MemberMemory:
    """The memory of member `rank` of `size`, with `nbytes` for buffers, and that of all others.

    Returns once all members are there. Raises `TeamBrokenError`, and `ConfigError` for what cannot work.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        size: int,
        nbytes: int,
        patience_s: float,
        names: Sequence[int],
        gone: Callable[[], str] = str,
    ) -> None:
        """`names` are what errors call the members, by rank; `gone` as of `Collective`."""
        self._names, self._gone = names, gone
        self._rank, self._size, self.patience_s = rank, size, patience_s
        self._bytes = BUFFERS_AT + nbytes
        self._others = [other for other in range(size) if other != rank]
        self._processes: dict[int, int] = {}  # pidfd by rank
        self._fence = memory_fence()
        name = _name(folder, rank)
        own = _make(name, self._bytes)
        self.maps: list[mmap.mmap] = [own] * size
        self.counters: list[memoryview] = [memoryview(own).cast("q")] * size
        self._counters[PID], self._counters[SIZE] = os.getpid(), size
        try:
            os.rename(f"{name}.new", name)
            deadline = time.monotonic() + patience_s
            for other in self._others:
                self._map(other, _name(folder, other), deadline)
            self.publish(MAPPED, 1)
            self.wait_for_all(MAPPED, 1)
            os.unlink(name)
            self.publish(MAPPED, 2)  # so that nobody finds this file who gathers here again
            self.wait_for_all(MAPPED, 2)
        except BaseException:
            self.close()
            with suppress(OSError):
                os.unlink(name)
            raise

    def publish(self, counter: int, value: int) -> None:
        """Let the others see `value`, and all that was written before."""
        self._fence()
        self._counters[counter] = value

    def wait_for_all(self, counter: int, value: int) -> None:
        """Return once the counter of each member is at `value` or beyond. Raises `TeamBrokenError`."""
        counters = self.counters
        for other in self._others:
            if counters[other][counter] < value:
                self._wait_for(other, counter, value)

    def call_of(self, rank: int, number: int) -> bytes:
        """What the member says that it calls as its call `number`."""
        begin = CALLS_AT + number % 2 * CALL_BYTES
        return self.maps[rank][begin : begin + CALL_BYTES].rstrip(b"\0")

    def say_call(self, number: int, call: bytes) -> None:
        """Write what this member calls; it is seen with the next counter."""
        begin = CALLS_AT + number % 2 * CALL_BYTES
        self.maps[self._rank][begin : begin + CALL_BYTES] = call[:CALL_BYTES].ljust(
            CALL_BYTES, b"\0"
        )

    def close(self) -> None:
        """Leave; the others, if they wait for this member, know at once. May be called twice."""
        if self.maps:
            self.publish(LEFT, 1)
        self.maps, self.counters = [], []  # unmapped once nobody looks at them
        while self._processes:
            os.close(self._processes.popitem()[1])

    @property
    def _counters(self) -> memoryview:
        return self.counters[self._rank]

    def _map(self, other: int, name: str, deadline: float) -> None:
        looked = time.monotonic()
        while not self._is_mapped(other, name):
            now = time.monotonic()
            if now > deadline:
                raise TeamBrokenError(
                    f"worker {self._names[other]} does not come within {self.patience_s:g} s"
                )
            if now > looked + ASK_EVERY_S:
                looked = now
                if gone := self._gone():
                    raise TeamBrokenError(gone)
            time.sleep(MOST_PAUSE_S)

    def _is_mapped(self, other: int, name: str) -> bool:
        try:
            file = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            populate = getattr(mmap, "MAP_POPULATE", 0)
            memory = mmap.mmap(file, 0, mmap.MAP_SHARED | populate)
        finally:
            os.close(file)
        counters = memoryview(memory).cast("q")
        try:
            process = os.pidfd_open(counters[PID])
        except ProcessLookupError:
            return False  # left by a member that was killed earlier
        except OSError as error:
            raise ConfigError(
                f"the process of worker {self._names[other]} cannot be watched: {error.strerror}; "
                "allow pidfd_open(2), Linux 5.3 or later"
            ) from None
        self._processes[other] = process
        if counters[SIZE] != self._size or len(memory) != self._bytes:
            raise ConfigError(
                f"worker {self._names[other]} is one of {counters[SIZE]} workers, worker "
                f"{self._names[self._rank]} one of {self._size}: "
                "start all with the same number of workers, and the same version of speedo"
            )
        self.counters[other], self.maps[other] = counters, memory
        return True

    def _wait_for(self, other: int, counter: int, value: int) -> None:
        counters = self.counters[other]
        for _ in range(YIELDS):
            os.sched_yield()
            if counters[counter] >= value:
                return
        began = looked = now = time.monotonic()
        pause = LEAST_PAUSE_S
        while True:
            time.sleep(pause)
            if counters[counter] >= value:
                return
            now = time.monotonic()
            if counters[LEFT] or now - looked > LOOK_EVERY_S:
                self._require_all(counter, value, late=now - began > self.patience_s)
                looked = now
            pause = min(1.5 * pause, MOST_PAUSE_S)

    def _require_all(self, counter: int, value: int, *, late: bool) -> None:
        """Raise `TeamBrokenError` if an awaited member will not come; it names one that ended before one that left."""
        counters = self.counters
        ended = {other for other, process in self._processes.items() if _has_ended(process)}
        left = {other for other in self._others if counters[other][LEFT]}
        awaited = {other for other in self._others if counters[other][counter] < value}
        if awaited & ended:
            raise TeamBrokenError(
                f"the process of worker {self._names[min(awaited & ended)]} has ended"
            )
        if awaited & left:
            raise TeamBrokenError(
                f"worker {self._names[min(awaited & left)]} has left the collective"
            )
        if awaited and late:
            last = min(awaited, key=lambda other: counters[other][CALLS : COMBINED + 1].tolist())
            raise TeamBrokenError(
                f"worker {self._names[last]} does not come within {self.patience_s:g} s"
            )


def views(maps: Sequence[mmap.mmap], offset: int, nbytes: int) -> list[memoryview]:
    """The same `nbytes` of the buffers of each member."""
    begin = BUFFERS_AT + offset
    return [memoryview(memory)[begin : begin + nbytes] for memory in maps]


def _name(folder: Path, rank: int) -> str:
    return f"{folder}/collective-{rank}"


def _make(name: str, nbytes: int) -> mmap.mmap:
    """A new file under a passing name; its pages are there."""
    with suppress(FileNotFoundError):
        os.unlink(f"{name}.new")
    try:
        file = os.open(f"{name}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, nbytes)  # without room, writing would end the process
            return mmap.mmap(file, nbytes)
        except OSError:
            os.unlink(f"{name}.new")
            raise
        finally:
            os.close(file)
    except OSError as error:
        raise ConfigError(
            f"{name}: {error.strerror}: the workers of a host share {nbytes / 1e6:.0f} MB each there; "
            "give the folder's file system more room"
        ) from None


def _has_ended(process: int) -> bool:
    ready = select.poll()
    ready.register(process, select.POLLIN)
    return bool(ready.poll(0))
