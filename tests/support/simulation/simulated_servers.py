"""What simulated workers share: a center over servers that are objects of this process, and the memory of a host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from speedo.engines.solver_update import Recipe
from speedo.exchange.codecs import Compression
from speedo.exchange.host_centers import Alone, HostCenters
from speedo.exchange.ranges import Range
from speedo.exchange.vector import Layout, Vector
from speedo.master.servers.range_server import RangeServer
from speedo.master.servers.served_center import ServedCenter
from speedo.master.servers.server_requests import Servers
from speedo.storage.base import Store
from speedo.storage.memory_store import MemoryStore


class SimulatedHosts:
    """`name_of` names the host of a worker; without it none shares anything."""

    def __init__(self, name_of: Callable[[int], str] | None) -> None:
        self._name_of = name_of
        self.memories: dict[str, Store] = {}

    def centers(self, worker: int, ranges: int, clock: Callable[[], float]) -> HostCenters | None:
        """What this worker shares of this many ranges."""
        if self._name_of is None:
            return None
        memory = self.memories.setdefault(self._name_of(worker), MemoryStore(clock=clock))
        return HostCenters(lambda _: (memory, Alone()), [True] * ranges, clock=clock)


def center_on_servers(
    ranges: Sequence[Range],
    stores: Sequence[MemoryStore],
    vector: Vector,
    layout: Layout,
    serve: Callable[[Sequence[RangeServer]], Servers],
    compression: Compression,
    recipe: Recipe | None,
) -> ServedCenter:
    """Each of the `stores` has a range; the other arguments are those of `simulate.simulate`."""
    served = serve(
        [
            RangeServer(
                "simulated",
                one.layout,
                own,
                compression=compression,
                solver=partial(recipe.update_of, one.place) if recipe else None,
            )
            for one, own in zip(ranges, stores, strict=True)
        ]
    )
    return ServedCenter("simulated", vector, layout, served, compression=compression, solver=recipe)
