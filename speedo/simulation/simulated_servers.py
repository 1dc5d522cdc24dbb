"""A center over servers that are objects of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from speedo.engines.solver_update import Recipe
from speedo.master.local_servers import LocalServers
from speedo.master.range_server import RangeServer
from speedo.master.served_center import ServedCenter
from speedo.master.server_requests import Servers
from speedo.simulation.simulated_hosts import SimulatedHosts
from speedo.storage.memory_store import MemoryStore
from speedo.vectors.codecs import Compression
from speedo.vectors.ranges import Range
from speedo.vectors.vector import Layout, Vector


def center_on_servers(
    ranges: Sequence[Range],
    stores: Sequence[MemoryStore],
    vector: Vector,
    layout: Layout,
    serve: Callable[[Sequence[RangeServer]], Servers],
    hosts: SimulatedHosts,
    compression: Compression,
    notes: Callable[[str], None],
    recipe: Recipe | None,
) -> ServedCenter:
    """Each of the `stores` has a range; the other arguments are those of `speedo.simulation.simulator.simulate`."""
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
    if isinstance(served, LocalServers):
        served.hosts = hosts.memories
    return ServedCenter(
        "simulated", vector, layout, served, compression=compression, note=notes, solver=recipe
    )
