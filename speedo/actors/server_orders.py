"""Which host has which server, as the master decides it; what it orders a host, and what a host says of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from speedo.engines.solver_update import Recipe
from speedo.exchange.ranges import Range


@dataclass(frozen=True, slots=True)
class ServerOrder:
    """Have server `index` run here, for this range. A higher `incarnation` is for a new process.

    `solver` is there if servers apply its update.
    """

    index: int
    incarnation: int
    range: Range
    solver: Recipe | None = None


def places_of(wanted: str, hosts: Mapping[str, int]) -> list[str]:
    """The host of each server. `hosts`: their workers, in the order in which they joined; `wanted`: a number, or auto.

    Hosts without workers come first: they are here to serve. With more servers than hosts it goes around again.
    """
    order = sorted(hosts, key=lambda name: hosts[name] > 0)
    count = len(order) if wanted == "auto" else int(wanted)
    return [order[index % len(order)] for index in range(count)]
