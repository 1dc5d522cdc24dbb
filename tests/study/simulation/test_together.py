"""Results that wait together: each keeps its own books, and the version between two of them is published for nobody."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import pytest

from speedo.exchange.served_vectors import Exchange, Sender, Stores
from speedo.exchange.vector import Blob, Layout, Vector
from speedo.master.center import Center
from speedo.master.coordinator import Coordinator
from speedo.master.driver import Driver
from speedo.master.plan import Plan
from speedo.messages import Command, Drop, Event, Joined, Kind, Merge, Train, Trained
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.base import Strategy
from speedo.sgd_modes.easgd import easgd
from speedo.sgd_modes.rules import AddDelta
from speedo.sgd_modes.weed_out import WeedOut
from speedo.storage.memory_store import MemoryStore
from tests.support.seen import Seen
from tests.support.simulation.simulate import Simulation, simulate
from tests.support.simulation.world import World

WORKERS, BATCH = 5, 4
LAYOUT = Layout((Blob("w", (3,)),))


def run(strategy: Strategy, gather_s: float, servers: int = 0) -> tuple[Simulation, Seen]:
    """A step lasts 0.1 s: in 1 s every worker comes."""
    seen = Seen()
    found = simulate(
        strategy,
        Plan(BATCH, 120, WORKERS, test_interval=50),
        world=World(gather_s=gather_s),
        observer=seen.follow,
        servers=servers,
    )
    return found, seen


@pytest.mark.parametrize("servers", [0, 2])
def test_staleness_is_the_number_of_merges_between_the_turns_version_and_its_own(
    servers: int,
) -> None:
    _, seen = run(Asynchronous(AddDelta()), 1.0, servers)
    version = {one.ticket: one.version for one in seen.all(Train)}
    merges = seen.all(Merge)
    assert [one.version for one in merges] == list(range(1, len(merges) + 1))
    tickets = [part.ticket for one in merges for part in one.parts]
    assert len(tickets) == len(set(tickets))
    for merge in merges:
        (part,) = merge.parts
        assert part.staleness == merge.version - 1 - version[part.ticket]


@pytest.mark.parametrize("strategy", [Asynchronous(AddDelta()), WeedOut(AddDelta(), window=3)])
def test_who_was_decided_together_trains_from_one_version(strategy: Strategy) -> None:
    _, seen = run(strategy, 1.0)
    runs, of_run = [], 0
    for action in seen.actions:
        if isinstance(action, (Merge, Drop)):
            of_run += 1
        elif isinstance(action, Train) and of_run:
            runs.append(of_run)
            of_run = 0
    assert max(runs) >= WORKERS - 1
    versions = [one.version for one in seen.all(Train)]
    assert len(set(versions)) < len(versions) / 2


def test_elastic_workers_are_told_of_the_version_that_their_own_result_made() -> None:
    _, seen = run(easgd(0.3), 1.0)
    made = {part.ticket: one.version for one in seen.all(Merge) for part in one.parts}
    pulled = [one for one in seen.all(Train) if one.own.merged]
    assert len(pulled) > 50
    assert all(one.version == made[one.own.merged] for one in pulled)


def test_what_is_tested_in_between_is_published() -> None:
    found, seen = run(Asynchronous(AddDelta()), 1.0)
    assert found.outcome.metrics == {"version": float(found.outcome.version)}
    assert not [event for event in seen.events if getattr(event, "problem", "")]


# ---------------------------------------------------------------- by hand


class Scripted:
    """Implements `speedo.master.cluster.Cluster`: hands out these results, one by one or all at once."""

    def __init__(self, store: MemoryStore, deltas: Sequence[Vector], *, together: bool) -> None:
        self.exchange = Exchange("run", LAYOUT, [Stores(store)])
        self.deltas, self.together, self.store = deltas, together, store
        self.events: deque[Event] = deque(Joined(worker, 1, BATCH) for worker in range(len(deltas)))
        self.commands: list[Train] = []
        self.versions: list[list[str]] = []  # in the store when a turn was told

    def send(self, command: Command) -> None:
        assert isinstance(command, Train)
        self.versions.append(self.store.keys("speedo:run:center:"))
        self.commands.append(command)
        if len(self.commands) == len(self.deltas):
            for one, delta in zip(self.commands, self.deltas, strict=True):
                sender = Sender(one.worker, 1, one.ticket, one.version, 0)
                self.exchange.publish(sender, Kind.DELTA, self.exchange.encode(delta, None))
                self.events.append(Trained(one.worker, 1, one.ticket, 0.5, BATCH))

    def next_event(self, timeout_s: float) -> Event | None:
        return self.events.popleft()

    def waiting(self, most: int) -> list[Event]:
        results = [event for event in self.events if isinstance(event, Trained)]
        if not (self.together and results):
            return []
        return [self.events.popleft() for _ in range(min(most, len(self.events)))]

    def evict(self, worker: int, incarnation: int, reason: str, *, for_good: bool = False) -> None:
        raise AssertionError(reason)


class CountingCenter(Center):
    """Remembers which versions it published."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__("run", LAYOUT.zeros(), LAYOUT, store)
        self.published: list[int] = []

    def publish(self) -> None:
        super().publish()
        self.published.append(self.version)


@pytest.mark.parametrize("count", [2, 7, 40])
def test_the_same_deltas_make_the_same_center_however_they_come(count: int) -> None:
    deltas = [np.array([n, -n / 8, 0.25], np.float32) for n in range(count)]  # exact in float32
    centers, published = [], []
    for together in (False, True):
        store = MemoryStore()
        center = CountingCenter(store)
        coordinator = Coordinator(Asynchronous(AddDelta(1.0)), Plan(BATCH, count, count))
        cluster = Scripted(store, deltas, together=together)
        Driver(coordinator, center, cluster, Seen().follow(Deaf()), lambda: 0.0).run()
        centers.append(center.vector.copy())
        published.append(len(center.published))
        assert center.version == count
        assert coordinator.received == count
    assert centers[0].tolist() == [sum(range(count)), -sum(range(count)) / 8, count / 4]
    assert centers[1].tobytes() == centers[0].tobytes()
    assert published[0] == count + 1
    assert published[1] == 2 + (count - 1) // 32  # the first, and the last of each 32


class Deaf:
    """An observer that nobody asks."""

    def saw(self, event: Event, now: float) -> None:
        """Nothing."""

    def did(self, action: object, now: float) -> None:
        """Nothing."""


def test_a_store_that_is_looked_at_between_two_merges_keeps_no_version_for_ever() -> None:
    """A refused result has the center restored: a version that is not published yet is none that the store lost."""
    store = MemoryStore()
    center = CountingCenter(store)
    center.publish()
    center.hold(0)
    center.merge(Merge(1, 1, BATCH, 1.0, ()), 0, more=True)
    center.restore()
    assert center.published == [0, 1]
    center.release(0)
    center.tidy()
    assert store.keys("speedo:run:center:") == ["speedo:run:center:1"]
