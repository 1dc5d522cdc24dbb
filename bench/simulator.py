"""Seconds that the simulator takes for 100,000 results of 1,000 workers, mode by mode.

    python -m bench.simulator [--workers 1000] [--results 100000] [--modes sync easgd]

A result is one turn of a worker, merged or discarded. Prints a line per mode.
"""

from __future__ import annotations

import argparse
import time

from speedo.master.plan import Plan
from speedo.messages import Action, Drop, Event, Merge, StopAsked
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from tests.support.every_mode import MODES, options_of
from tests.support.simulation.simulate import simulate
from tests.support.simulation.simulator import SimulatedCluster

BATCH = 10


class Results:
    """Counts results, and stops the run when there are enough: weed-out discards many."""

    def __init__(self, enough: int) -> None:
        self.enough, self.merged, self.discarded = enough, 0, 0
        self.cluster: SimulatedCluster | None = None

    def watch(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster

    def saw(self, event: Event, now: float) -> None:
        """Only what becomes of a result counts."""

    def did(self, action: Action, now: float) -> None:
        if isinstance(action, Merge):
            self.merged += len(action.parts)
        elif isinstance(action, Drop) and action.decision == "discarded":
            self.discarded += 1
        if self.merged + self.discarded == self.enough and self.cluster is not None:
            self.cluster.at(now, lambda: StopAsked("enough for a measurement"))


def measure(mode: str, workers: int, results: int) -> tuple[float, Results]:
    """Seconds of one run, and its results."""
    counts = Results(results)
    strategy = make_strategy(make_config(options_of(mode, results)), BATCH)
    began = time.perf_counter()
    simulate(
        strategy,
        Plan(BATCH, results, workers=workers),
        keep_trace=False,
        script=counts.watch,
        observer=lambda trace: counts,
    )
    return time.perf_counter() - began, counts


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of the simulator, mode by mode.")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--results", type=int, default=100_000)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    arguments = parser.parse_args()
    for mode in arguments.modes:
        seconds, counts = measure(mode, arguments.workers, arguments.results)
        print(
            f"{mode:9} {seconds:6.1f} s  {counts.merged:7} merged {counts.discarded:7} discarded"
            f"  {1e6 * seconds / arguments.results:5.0f} us per result",
            flush=True,
        )


if __name__ == "__main__":
    main()
