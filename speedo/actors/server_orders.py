"""Which host has which server, as the master decides it; what it orders a host, and what a host says of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from speedo.vectors.vector import Layout


@dataclass(frozen=True, slots=True)
class ServerOrder:
    """Have server `index` run here, for the range of this layout. A higher `incarnation` is for a new process."""

    index: int
    incarnation: int
    layout: Layout


def places_of(wanted: str, hosts: Mapping[str, int]) -> list[str]:
    """The host of each server. `hosts`: their workers, in the order in which they joined; `wanted`: a number, or auto.

    Hosts without workers come first: they are here to serve. With more servers than hosts it goes around again.
    """
    order = sorted(hosts, key=lambda name: hosts[name] > 0)
    count = len(order) if wanted == "auto" else int(wanted)
    return [order[index % len(order)] for index in range(count)]
