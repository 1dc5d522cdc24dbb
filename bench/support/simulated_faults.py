"""What the simulator makes of a run's faults: the same ones at the same times, over its own clock.

A fault takes as long as those of its kind took in the median of what was measured: until the workers that it hits are
back, or without a merge where none was missing. Of the rest (schedule, merges, rounds, turns under way) the simulator
knows by itself.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from bench.support.fault_kinds import ALL_WORKERS, HOST_ALONE
from speedo.master.driver import Limits
from speedo.master.plan import Plan
from speedo.messages import Action, Event, Merge, StopAsked, Trained
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from tests.support.simulation.simulate import simulate
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.world import World

BATCH: Final = 64
FOR_EVER: Final = 10**9
Fault = tuple[str, float, float]  # kind, when, and how long it took


class _Merged:
    """Records that were merged."""

    def __init__(self) -> None:
        self.records = 0
        self._of = dict[int, int]()

    def saw(self, event: Event, now: float) -> None:
        if isinstance(event, Trained):
            self._of[event.ticket] = event.samples

    def did(self, action: Action, now: float) -> None:
        if isinstance(action, Merge):
            self.records += sum(self._of.pop(part.ticket, 0) for part in action.parts)


def simulated_goodput(
    mode: str, workers: int, hosts: int, speed: float, seconds: float, faults: Sequence[Fault]
) -> float:
    """Of a run of so many seconds, which has `speed` records/s without faults."""
    took = defaultdict[str, list[float]](list)
    for kind, _, lasted in faults:
        took[kind].append(lasted)

    def happen(cluster: SimulatedCluster) -> None:
        chance = random.Random(0)
        for kind, at, _ in faults:
            hit = 1
            if kind in ALL_WORKERS:
                hit = workers
            elif kind in HOST_ALONE:
                hit = math.ceil(workers / hosts)
            lasts = statistics.median(took[kind])
            for worker in chance.sample(range(workers), hit) if lasts else ():
                cluster.die(worker, at)
                cluster.join(worker, at + lasts)

    def records(script: bool) -> int:
        merged = _Merged()

        def begin(cluster: SimulatedCluster) -> None:
            cluster.at(seconds, lambda: StopAsked("its time is over"))
            if script:
                happen(cluster)

        simulate(
            make_strategy(make_config({"mode": mode}), BATCH),
            Plan(BATCH, FOR_EVER, workers=workers),
            world=World(step_s=workers * BATCH / speed),
            samples_per_step=BATCH,
            keep_trace=False,
            script=begin,
            observer=lambda trace: merged,
            limits=Limits(join_s=math.inf),
        )
        return merged.records

    return records(True) / records(False)
