"""Random schedules for a strategy: workers of different speed that join, die, return and send bad results.

The cluster is simulated; coordinator, driver, center and workers are those of a real run. Equal seeds give equal runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import TrainingStopped
from speedo.master.center import Center
from speedo.master.coordinator import Coordinator
from speedo.master.driver import Driver, Limits
from speedo.master.observers import Observers
from speedo.master.plan import Plan
from speedo.sgd_modes.base import Strategy
from speedo.sgd_modes.rules import AddDelta
from speedo.storage.memory_store import MemoryStore
from speedo.study.contracts.watched_strategy import BrokenStrategyError, WatchedStrategy
from speedo.study.simulation.simulator import SimulatedCluster
from speedo.study.simulation.world import Faults, World

SCHEDULES = 40
LIMITS = Limits(start_s=20.0, join_s=15.0, turn_s=12.0, test_s=30.0)
BATCH = 6


@dataclass(frozen=True)
class Schedule:
    """A run, made up. `happenings` are (time in seconds, join or die, worker)."""

    seed: int
    workers: int
    iterations: int
    speeds: tuple[float, ...]
    jitter: float
    faults: Faults
    happenings: tuple[tuple[float, str, int], ...]

    def __str__(self) -> str:
        return f"schedule {self.seed}, {self.workers} workers"


def schedule(seed: int) -> Schedule:
    """The schedule of this seed: the first ones are simple, from the fourth on with faults."""
    chance = random.Random(seed)
    workers = 2 + seed % 4
    simple = seed < 3

    def often() -> float:
        return 0.0 if simple else chance.choice((0.0, 0.0, 0.05, 0.2))

    faults = Faults(
        die=often(), lose=often(), repeat=often(), late=often(), poison=often(), leave=often(), fail=often(),
        return_s=chance.choice((None, 0.3, 4.0)),
    )  # fmt: skip
    happenings = [
        (
            round(chance.uniform(0, 3), 2),
            chance.choice(("join", "die")),
            chance.randrange(workers + 1),
        )
        for _ in range(0 if simple else chance.choice((0, 2, 5)))
    ]
    return Schedule(
        seed,
        workers,
        iterations=chance.randint(10, 30),
        speeds=tuple(chance.choice((0.5, 1.0, 1.0, 3.0, 8.0)) for _ in range(workers)),
        jitter=0.0 if simple else chance.choice((0.0, 0.1, 0.9)),
        faults=faults,
        happenings=tuple(sorted(happenings)),
    )


def try_schedule(strategy: Strategy, made: Schedule) -> None:
    """Run a strategy, which has run nothing yet, through a schedule. Raises `BrokenStrategyError`."""
    watched = WatchedStrategy(strategy)
    try:
        _driver(watched, made).run()
    except (BrokenStrategyError, TrainingStopped) as error:
        raise BrokenStrategyError(f"{made}: {error}") from None
    except Exception as error:
        told = "\n".join(f"    {line}" for line in watched.lines[-8:])
        raise BrokenStrategyError(f"{made}: {type(error).__name__}: {error}\n{told}") from error


def _driver(strategy: WatchedStrategy, made: Schedule) -> Driver:
    def engine(rank: int) -> QuadraticEngine:
        return QuadraticEngine(seed=made.seed, rank=rank, batch=BATCH, lr=0.05, noise=0.01)

    world = World(
        jitter=made.jitter,
        faults=made.faults,
        slowness=lambda worker: made.speeds[worker % len(made.speeds)],
    )
    store = MemoryStore(clock=lambda: cluster.now)
    cluster = SimulatedCluster(world, store, "simulated", engine, made.seed)
    for worker in range(made.workers):
        cluster.join(worker)
    for time, what, worker in made.happenings:
        (cluster.join if what == "join" else cluster.die)(worker, time)
    coordinator = Coordinator(strategy, Plan(BATCH, made.iterations, workers=made.workers))
    cluster.version = lambda: coordinator.version
    layout = engine(0).layout
    center = Center("simulated", layout.zeros(), layout, store)
    observers = Observers()
    return Driver(coordinator, center, cluster, observers, cluster.clock, LIMITS, has_tester=True)


def check_strategy(make: Callable[..., Strategy], schedules: int = SCHEDULES) -> None:
    """Try strategies in random schedules; `make(rule=...)` makes a new one, as the class of a strategy does.

    Raises `BrokenStrategyError` for one that deadlocks, merges a result twice, or lets train who cannot.
    """
    for seed in range(schedules):
        try_schedule(make(rule=AddDelta()), schedule(seed))
