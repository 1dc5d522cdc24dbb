"""What tests make up about a simulated cluster, besides what the product's simulator has."""

from __future__ import annotations

from dataclasses import dataclass

from speedo.exchange.codecs import NO_COMPRESSION, Compression
from speedo.study.simulation import world
from speedo.study.simulation.world import Faults as Faults


@dataclass(frozen=True, slots=True)
class World(world.World):
    """The master takes its events together that come within `gather_s` seconds at most after the first of them.

    That is within a part of it which is drawn each time. It needs `decide_s` seconds for each: more than the workers
    take between two, and its queue is never empty.
    """

    compression: Compression = NO_COMPRESSION
    gather_s: float = 0.0
    decide_s: float = 0.0
