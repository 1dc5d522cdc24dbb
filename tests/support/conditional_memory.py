"""A store in memory that also changes small values on a condition, as Redis does for a lease and a fence."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, Self, TypeVar

from speedo.errors import StoreUnavailableError
from speedo.storage import keys
from speedo.storage.conditional import FOREVER, Decide, Guard, Small, Smalls
from speedo.storage.memory_store import Blob, MemoryStore

Answer = TypeVar("Answer")
_NEVER: Final = float("inf")


class ConditionalMemory(MemoryStore):
    """With a `guard` each write depends on the run's epoch.

    What depends on something is done in two steps, as in Redis, and the simulator puts a network between (`carry`).
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock=clock)
        self.guard: Guard | None = None
        self._smalls: dict[str, tuple[bytes, float]] = {}
        self._writes: Counter[str] = Counter()  # of each small value

    def for_master(self, guard: Guard | None) -> Self:
        """Another user of the same memory, whose writes have this guard."""
        other = copy.copy(self)
        other.guard = guard
        return other

    def carry(self, step: Callable[[], Answer]) -> Answer:
        """Have the store do this."""
        return step()

    def write(
        self, key: str, head: bytes, body: memoryview, *, expire_s: float | None = None
    ) -> None:
        if self.guard is None:
            super().write(key, head, body, expire_s=expire_s)
        else:
            end = _NEVER if expire_s is None else self._clock() + expire_s
            self._write_guarded(self.guard, key, (bytes(head), body.tobytes(), end))

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
