"""A store in this process's memory, for tests and for the simulator, whose clock it can share."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, Self, TypeVar

from speedo.errors import MissingKeyError, PayloadError, StoreUnavailableError
from speedo.storage import keys
from speedo.storage.base import Arrived, View
from speedo.storage.conditional import FOREVER, Decide, Guard, Small, Smalls
from speedo.storage.keys import check_blob

Answer = TypeVar("Answer")
Blob = tuple[bytes, bytes, float]  # head, body, and when it expires
_NEVER: Final = float("inf")
_FEW: Final = 1024


class MemoryStore:
    """Blobs in a dictionary, copied when written and when read.

    `clock` gives seconds and is read only for blobs that expire. An expired blob is invisible at once, and removed at
    the latest when the number of blobs has doubled. With a `guard` each write depends on the run's epoch; what depends
    on something is done in two steps, as in Redis, and the simulator puts a network between (`carry`).
    """

    is_one_memory: Final = False

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.guard: Guard | None = None
        self._blobs: dict[str, Blob] = {}
        self._smalls: dict[str, tuple[bytes, float]] = {}
        self._writes: Counter[str] = Counter()  # of each small value
        self._sweep_at = _FEW

    @property
    def address(self) -> str:
        """The name of the store in messages."""
        return "this process's memory"

    def for_master(self, guard: Guard | None) -> Self:
        """Another user of the same memory, whose writes have this guard."""
        other = copy.copy(self)
        other.guard = guard
        return other

    def carry(self, step: Callable[[], Answer]) -> Answer:
        """Have the store do this."""
        return step()

    def place(self, key: str, nbytes: int) -> memoryview | None:
        """See `Store.place`: there is no such memory here."""
        return None

    def write(
        self, key: str, head: bytes, body: memoryview, *, expire_s: float | None = None
    ) -> None:
        check_blob(key, head)
        end = _NEVER if expire_s is None else self._clock() + expire_s
        blob = bytes(head), body.tobytes(), end
        if self.guard is None:
            self._blobs[key] = blob
        else:
            self._write_guarded(self.guard, key, blob)
        if len(self._blobs) > self._sweep_at:
            self._sweep()

    def read_head(self, key: str) -> tuple[bytes, int]:
        head, body = self._find(key)
        return head, len(body)

    def view(self, key: str, nbytes: int) -> View | None:
        """See `Store.view`: a blob must be read."""
        return None

    def read(self, key: str, into: memoryview, arrived: Arrived | None = None) -> bytes:
        head, body = self._find(key)
        if len(body) != len(into):
            raise PayloadError(f"{key} has a body of {len(body)} bytes, {len(into)} were expected")
        into[:] = body
        return head

    def delete(self, *keys: str) -> None:
        for key in keys:
            self._blobs.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        self._sweep()
        return sorted(key for key in self._blobs if key.startswith(prefix))

    def change(self, names: tuple[str, ...], decide: Decide) -> None:
        while True:
            found, writes = self.carry(lambda: self._look(names))
            wanted = decide(found)
            if not wanted or self.carry(partial(self._put_if, names, writes, wanted)):
                return

    def _write_guarded(self, guard: Guard, key: str, blob: Blob) -> None:
        own, beside = keys.epoch(guard.run), guard.beside(key)
        names = (own, *beside)
        found, writes = self.carry(lambda: self._look(names))
        guard.require(found[own])
        if not self.carry(lambda: self._put_if(names, writes, beside, {key: blob})):
            raise StoreUnavailableError(f"{key} is not stored: another write came between")
        guard.written(beside)

    def _look(self, names: tuple[str, ...]) -> tuple[Smalls, list[int]]:
        return {name: self._small(name) for name in names}, [self._writes[name] for name in names]

    def _put_if(
        self,
        names: tuple[str, ...],
        writes: list[int],
        wanted: Smalls,
        blobs: Mapping[str, Blob] = MappingProxyType({}),
    ) -> bool:
        """Write all that, if nobody has written a value under `names` meanwhile."""
        if [self._writes[name] for name in names] != writes:
            return False
        for name, small in wanted.items():
            self._writes[name] += 1
            self._smalls.pop(name, None)
            if small is not None:
                end = _NEVER if small.left_s == FOREVER else self._clock() + small.left_s
                self._smalls[name] = small.data, end
        self._blobs.update(blobs)
        return True

    def _small(self, name: str) -> Small | None:
        data, end = self._smalls.get(name, (b"", 0.0))
        if end == _NEVER:
            return Small(data)
        left_s = end - self._clock() if name in self._smalls else 0.0
        return Small(data, left_s) if left_s > 0 else None

    def ping(self) -> None:
        return None

    def close(self) -> None:
        return None

    def _find(self, key: str) -> tuple[bytes, bytes]:
        try:
            head, body, end = self._blobs[key]
        except KeyError:
            raise MissingKeyError(f"{key} is not in {self.address}") from None
        if end is not _NEVER and end <= self._clock():
            self._blobs.pop(key, None)
            raise MissingKeyError(f"{key} is no longer in {self.address}: it has expired")
        return head, body

    def _sweep(self) -> None:
        now = self._clock()
        for key, (_, _, end) in list(self._blobs.items()):
            if end <= now:
                del self._blobs[key]
        self._sweep_at = 2 * len(self._blobs) + _FEW
