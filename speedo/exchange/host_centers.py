"""The newest centers that a host has in its memory: fetched once for all its workers, and there if a server is lost.

A worker that has fetched a version leaves it in memory that the processes of its host share, as it travelled: header,
checksum, encoding. Another worker that wants the same version reads it there; one that comes while it is being fetched
waits for that. Before such a copy is used its server says that it still has this version with the same header, so a
copy is never older than the store, and its checksum is checked as always. What cannot be had here is fetched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from speedo.errors import PayloadError, StoreError
from speedo.exchange.codecs import Codec
from speedo.exchange.ranges import Range
from speedo.exchange.transfer import fetch_vector
from speedo.exchange.vector import Header, Vector
from speedo.messages import Kind
from speedo.storage import keys
from speedo.storage.base import Store

KEPT: Final = 2  # versions of a range
WAIT_S: Final = 5.0  # for the fetch of another worker, at most
WAIT_FETCHES: Final = 3.0  # nor longer than this many fetches of one's own
KEEP_S: Final = 1.0  # for a lock that is held only as long as a copy takes
_KEEPING: Final = 0  # the lock for changes of the kept versions; the locks of versions follow


class Locks(Protocol):
    """Locks between the processes of a host, as `speedo.storage.shared_memory.locks.SharedLocks`."""

    def have_others(self) -> bool: ...

    def held(self, number: int, patience_s: float) -> AbstractContextManager[bool]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class HostCenters:
    """How a worker reaches its host's memory: `open` gives the store and the locks of the range that begins there.

    `far` says of each range whether it comes over a cable; only such are shared.
    """

    open: Callable[[int], tuple[Store, Locks]]
    far: Sequence[bool]
    clock: Callable[[], float] = time.monotonic


class HostRange:
    """One range of the center in the memory of this host, for one thread at a time."""

    def __init__(self, host: HostCenters, index: int, run: str, place: Range, codec: Codec) -> None:
        self._shares, self._clock = host.far[index], host.clock
        self._run, self._range, self._codec = run, place, codec
        self._store, self._locks = host.open(place.place.start)
        self._fetch_s = WAIT_S  # of the last fetch from the server

    def fetch(
        self,
        version: int,
        into: Vector,
        from_server: Callable[[], Header],
        head: Callable[[], bytes],
        *,
        alone: bool = False,
    ) -> None:
        """Fill `into` with this version, from here or else `from_server`, which fills it; `head` asks for its header.

        `alone`: no other worker of this host wants it. Raises what these two raise.
        """
        if alone or not self._shares or not self._locks.have_others():
            from_server()
            return
        if self._read(version, into, head):
            return
        with self._locks.held(1 + version, min(WAIT_S, WAIT_FETCHES * self._fetch_s)):
            if self._read(version, into, head):
                return
            began = self._clock()
            header = from_server()
            self._fetch_s = self._clock() - began
            self._keep(header, into)

    def close(self) -> None:
        """Let go of the memory; what was left in it stays."""
        self._store.close()
        self._locks.close()

    def _read(self, version: int, into: Vector, head: Callable[[], bytes]) -> bool:
        """Whether it was here, undamaged, and is what the server has under this version."""
        key = keys.copy(self._run, self._range.place.start, version)
        try:
            found = fetch_vector(
                self._store, key, self._range.layout, Kind.CENTER, into, self._codec
            )
        except (StoreError, PayloadError):
            return False
        return found.version == version and found.pack() == head()

    def _keep(self, header: Header, vector: Vector) -> None:
        """Leave it for the others, unless newer ones are there. Memory that is full is no reason to fail."""
        start = self._range.place.start
        with suppress(StoreError), self._locks.held(_KEEPING, KEEP_S) as mine:
            if not mine:
                return
            kept = versions_of(self._store, self._run, start)
            newer = [one for one in kept if one >= header.version]
            if len(newer) < KEPT:
                old = kept[: max(0, len(kept) - KEPT + 1)]
                over = [keys.copy(self._run, start, one) for one in old]
                self._store.delete(*over, *_of_former_masters(self._store, self._run))
                body = self._codec.body_for(vector)
                key = keys.copy(self._run, start, header.version)
                self._store.write(key, header.pack(), body)


def versions_of(store: Store, run: str, start: int) -> list[int]:
    """The versions of this range that a host has in its memory, the oldest first. Raises `StoreError`."""
    stem = keys.copies(run, start)
    return sorted(int(key.removeprefix(stem)) for key in store.keys(stem))


def _of_former_masters(store: Store, run: str) -> list[str]:
    """The copies that a host still has of epochs before that of the keyspace `run`; nobody reads them any more."""
    name, _, epoch = run.rpartition(":")
    if not epoch.isdecimal():
        return []
    return [
        key for key in store.keys(keys.prefix(name)) if -1 < keys.epoch_of(name, key) < int(epoch)
    ]


class Alone:
    """Implements `Locks` where all workers take their turns in one thread: every lock is free."""

    def __init__(self, *, others: bool = True) -> None:
        self._others = others

    def have_others(self) -> bool:
        return self._others

    @contextmanager
    def held(self, number: int, patience_s: float) -> Iterator[bool]:
        yield True

    def close(self) -> None:
        pass
