"""The memory that simulated workers of one host share."""

from __future__ import annotations

from collections.abc import Callable

from speedo.storage.base import Store
from speedo.storage.memory_store import MemoryStore
from speedo.vectors.host_centers import Alone, HostCenters


class SimulatedHosts:
    """`name_of` names the host of a worker; without it none shares anything."""

    def __init__(self, name_of: Callable[[int], str] | None) -> None:
        self._name_of = name_of
        self.memories: dict[str, Store] = {}

    def centers(self, worker: int, ranges: int, clock: Callable[[], float]) -> HostCenters | None:
        """What this worker shares of so many ranges."""
        if self._name_of is None:
            return None
        memory = self.memories.setdefault(self._name_of(worker), MemoryStore(clock=clock))
        return HostCenters(lambda _: (memory, Alone()), [True] * ranges, saves=True, clock=clock)
