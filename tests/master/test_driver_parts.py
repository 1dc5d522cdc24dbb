"""What the driver does with its parts: checkpoints, the watch on divergence, outages of the store, snapshots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from speedo import messages
from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import EngineError, StoreUnavailableError
from speedo.master.center import Center
from speedo.master.coordinator import Coordinator
from speedo.master.divergence import DivergenceWatch
from speedo.master.driver import QUIET_S, Driver, Limits
from speedo.master.observers import Observers
from speedo.master.plan import Plan
from speedo.messages import (
    Action,
    Checkpointed,
    Event,
    Left,
    Merge,
    SaveState,
    Snapshot,
    Snapshotted,
    Trained,
)
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.base import Strategy
from speedo.sgd_modes.rules import AddDelta, ServerGradient
from speedo.sgd_modes.synchronous import Synchronous
from speedo.storage.memory_store import MemoryStore
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.world import World

BATCH = 10


@dataclass
class Log:
    """An observer that keeps everything, with its time."""

    seen: list[tuple[float, Event]] = field(default_factory=list)
    done: list[tuple[float, Action]] = field(default_factory=list)

    def saw(self, event: Event, now: float) -> None:
        self.seen.append((round(now, 6), event))

    def did(self, action: Action, now: float) -> None:
        self.done.append((round(now, 6), action))

    def events(self, kind: type[Event]) -> list[tuple[float, Any]]:
        return [(now, event) for now, event in self.seen if isinstance(event, kind)]


def driver_of(
    plan: Plan,
    world: World | None = None,
    joins: int | None = None,
    strategy: Strategy | None = None,
    kind: type[Center] = Center,
    **parts: Any,
) -> tuple[Driver, Log]:
    """A driver over a simulated cluster whose workers' turns of one step last 0.1 s."""
    world = world or World(jitter=0.0, latency_s=0.0)
    store = MemoryStore(clock=lambda: cluster.now)
    cluster = SimulatedCluster(
        world, store, "run", lambda rank: QuadraticEngine(4, rank=rank, batch=BATCH), 0
    )
    for worker in range(plan.workers if joins is None else joins):
        cluster.join(worker)
    layout, log = QuadraticEngine(4).layout, Log()
    coordinator = Coordinator(strategy or Asynchronous(AddDelta()), plan)
    center = kind("run", layout.zeros(), layout, store)
    return Driver(coordinator, center, cluster, log, cluster.clock, **parts), log


def cluster_of(driver: Driver) -> SimulatedCluster:
    assert isinstance(driver.cluster, SimulatedCluster)
    return driver.cluster


@dataclass
class Kept:
    """Checkpoints that are due at these times and done after `lasts` seconds; what the driver tells of them."""

    clock: Callable[[], float] = lambda: 0.0
    due_at: tuple[float, ...] = ()
    lasts: float = 0.25
    asked: list[float] = field(default_factory=list)
    begun: list[tuple[float, int, float]] = field(default_factory=list)
    heard: list[Event] = field(default_factory=list)
    under_way: list[tuple[float, int]] = field(default_factory=list)

    def due(self, now: float) -> bool:
        self.asked.append(round(now, 6))
        return self.asked[-1] in self.due_at

    def begin(
        self, coordinator: Coordinator, seconds: float, now: float, within_s: float = math.inf
    ) -> list[SaveState]:
        self.begun.append((round(now, 6), coordinator.version, round(seconds, 6)))
        self.under_way.append((now + self.lasts, coordinator.version))
        return [SaveState(0, 1, 100 + coordinator.version)]

    def saw(self, event: Event) -> None:
        self.heard.append(event)

    def finished(self, now: float) -> list[Checkpointed]:
        done = [version for end, version in self.under_way if end <= now]
        self.under_way = [one for one in self.under_way if one[0] > now]
        return [Checkpointed(version, version, 0.0, 1, "") for version in done]

    def deadline(self) -> float:
        return min((end for end, _ in self.under_way), default=float("inf"))


def test_checkpoints_are_begun_when_a_merge_makes_them_due_and_once_more_at_the_end() -> None:
    """One worker's five merges, from 0.1 s to 0.5 s; the first turn begins at 0 s."""
    kept = Kept(due_at=(0.2,))
    driver, log = driver_of(Plan(BATCH, 5, workers=1), checkpoints=kept)
    sent: list[tuple[float, int]] = []

    def deliver(event: Event) -> Event | None:
        if isinstance(event, messages.StateSaved):
            sent.append((round(cluster_of(driver).now, 6), event.version))
            return None
        return event

    cluster_of(driver).deliver = deliver
    driver.run()
    assert kept.asked == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert kept.begun == [(0.2, 2, 0.2), (0.5, 5, 0.5)]
    assert sent == [(0.3, 102), (0.6, 105)]
    assert [(now, one.version) for now, one in log.events(Checkpointed)] == [(0.45, 2), (0.75, 5)]
    assert cluster_of(driver).now == pytest.approx(0.75)


def test_checkpoints_hear_of_workers_that_leave_and_of_what_they_save() -> None:
    kept = Kept()
    driver, _ = driver_of(Plan(BATCH, 5, workers=2), checkpoints=kept)
    saved = messages.StateSaved(0, 1, 1, 3, 0, 1, BATCH)
    cluster_of(driver).die(1, 0.15, "killed")
    cluster_of(driver).at(0.25, lambda: saved)
    driver.run()
    assert kept.heard[:2] == [Left(1, 1, "killed"), saved]


def test_a_run_that_trained_nothing_keeps_nothing() -> None:
    kept = Kept()
    driver, _ = driver_of(
        Plan(BATCH, 5, workers=2), joins=1, checkpoints=kept, limits=Limits(start_s=5.0)
    )
    driver.run()
    assert kept.begun == []


def test_a_run_that_diverges_stops_with_the_first_reason() -> None:
    told: list[tuple[float, int]] = []

    class FromTheThirdOn(DivergenceWatch):
        def saw(self, loss: float, samples: int) -> str | None:
            told.append((loss, samples))
            return f"it diverged {len(told)}" if len(told) >= 3 else None

    driver, log = driver_of(Plan(BATCH, 50, workers=1), divergence=FromTheThirdOn(stops=True))
    outcome = driver.run()
    assert (outcome.complete, outcome.reason, outcome.version) == (False, "it diverged 3", 3)
    losses = [event.loss for _, event in log.events(Trained)]
    assert told == [(loss, 10) for loss in losses[:3]]


def test_quiet_turns_have_the_store_probed_every_five_seconds() -> None:
    """A turn of 12 s: the probe is written at 5 s and at 10 s, and none is needed after a result."""
    driver, _ = driver_of(Plan(BATCH, 1, workers=1), World(step_s=12.0, jitter=0.0, latency_s=0.0))
    probes: list[float] = []
    write = driver.center.store.write

    def watched(key: str, *rest: Any, **options: Any) -> None:
        if key.endswith(":probe"):
            probes.append(round(cluster_of(driver).now, 6))
        write(key, *rest, **options)

    driver.center.store.write = watched  # type: ignore[method-assign]
    assert driver.run().complete
    assert probes == [QUIET_S, 2 * QUIET_S]


def test_turns_that_waited_for_an_outage_of_the_store_get_their_whole_time_again() -> None:
    """The first turn may last 20 s; it is lost, and at 15 s an outage was seen. So it is overdue at 35 s."""

    class Away(Center):
        @property
        def outages(self) -> int:
            return int(cluster_of(driver).now >= 15.0)

    driver, log = driver_of(
        Plan(BATCH, 1, workers=1),
        kind=Away,
        limits=Limits(turn_s=20.0, join_s=1.0),
    )
    cluster_of(driver).deliver = lambda event: None
    assert not driver.run().complete
    assert [now for now, _ in log.events(Left)] == [35.0]


def test_a_probe_that_fails_ends_the_run() -> None:
    driver, _ = driver_of(Plan(BATCH, 1, workers=1), limits=Limits(turn_s=20.0))
    cluster_of(driver).deliver = lambda event: None
    write = driver.center.store.write

    def full(key: str, *rest: Any, **options: Any) -> None:
        if cluster_of(driver).now > 0:
            raise StoreUnavailableError("the memory is full")
        write(key, *rest, **options)

    driver.center.store.write = full  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailableError, match="the memory is full"):
        driver.run()


@dataclass
class Taken:
    """A snapshot of the center that is written at once."""

    iteration: int
    wants_histories: bool = True

    def write(self, histories: Sequence[tuple[bytes, int]]) -> str:
        return "no space" if self.iteration == 4 else ""


@dataclass
class Album:
    """Takes snapshots; the last one too, unless the run ends at `no_last`."""

    no_last: int = 0
    asked: list[tuple[int, bool]] = field(default_factory=list)

    def take(self, iteration: int, last: bool) -> Taken:
        self.asked.append((iteration, last))
        if iteration == 6:
            raise EngineError("no memory")
        return Taken(iteration)

    def taken_at_end(self, iteration: int) -> Taken | None:
        return None if iteration == self.no_last else self.take(iteration, True)


def test_snapshots_are_told_once_written_with_the_problem() -> None:
    album = Album()
    driver, log = driver_of(Plan(BATCH, 7, workers=1, snapshot=2), snapshots=album)
    driver.run()
    assert album.asked == [(2, False), (4, False), (6, False), (7, True)]
    assert [event for _, event in log.events(Snapshotted)] == [
        Snapshotted(2, 2),
        Snapshotted(4, 4, "no space"),
        Snapshotted(6, 6, "no snapshot at iteration 6: no memory"),
        Snapshotted(7, 7),
    ]


def test_a_run_that_merged_nothing_takes_none() -> None:
    album = Album()
    driver, _ = driver_of(Plan(BATCH, 5, workers=1), snapshots=album)
    cluster_of(driver).at(0.05, lambda: messages.StopAsked("enough"))
    driver.run()
    assert driver.coordinator.samples == 0
    assert album.asked == []


def test_a_run_that_leaves_none_at_its_end_takes_none() -> None:
    album = Album(no_last=5)
    driver, log = driver_of(Plan(BATCH, 5, workers=1, snapshot=2), snapshots=album)
    driver.run()
    assert [one.iteration for _, one in log.events(Snapshotted)] == [2, 4]


def test_a_merge_is_told_after_the_turns_that_follow_are_sent() -> None:
    """Nobody waits for observers: what they are told of is done."""
    driver, log = driver_of(Plan(BATCH, 2, workers=1))
    heard: list[str] = []
    did, send = log.did, driver.cluster.send

    def told(action: Action, now: float) -> None:
        heard.append(type(action).__name__)
        did(action, now)

    def sent(command: Any) -> None:
        heard.append(f"sent {type(command).__name__}")
        send(command)

    log.did, driver.cluster.send = told, sent  # type: ignore[method-assign]
    driver.run()
    assert heard[:4] == ["sent Train", "Train", "sent Train", "Merge"]
    assert isinstance(log.done[1][1], Merge)


def test_while_nobody_trains_the_store_is_left_alone() -> None:
    driver, _ = driver_of(Plan(BATCH, 5, workers=2), joins=1, limits=Limits(start_s=30.0))
    driver.run()
    assert driver.center.store.keys("speedo:run:probe") == []


def test_what_is_over_leaves_the_store_while_the_run_goes_on() -> None:
    """At 0.35 s version 3 is trained on, and nothing else is needed."""
    driver, _ = driver_of(Plan(BATCH, 5, workers=1))
    found: list[list[str]] = []
    cluster_of(driver).at(0.35, lambda: found.append(driver.center.store.keys("speedo:")))
    driver.run()
    assert found == [["speedo:run:center:3"]]


def test_a_center_that_a_worker_missed_is_published_again() -> None:
    """Its turn fails without blame, and the next one has it."""
    driver, log = driver_of(Plan(BATCH, 5, workers=1))
    cluster_of(driver).at(0.15, lambda: driver.center.store.delete("speedo:run:center:1"))
    driver.run()
    refused = log.events(messages.Refused)
    assert [(now, event.blame) for now, event in refused] == [(0.2, False)]
    assert log.events(Trained)[1][0] == 0.3


def test_a_center_that_is_lost_with_a_payload_is_published_again() -> None:
    """The store forgets all while the message of the first result is on its way."""
    driver, log = driver_of(Plan(BATCH, 3, workers=1))
    lost: list[float] = []

    def deliver(event: Event) -> Event:
        if isinstance(event, Trained) and not lost:
            lost.append(cluster_of(driver).now)
            store = driver.center.store
            store.delete(*store.keys("speedo:"))
        return event

    cluster_of(driver).deliver = deliver
    assert driver.run().complete
    drops = [action for _, action in log.done if isinstance(action, messages.Drop)]
    assert [(one.ticket, one.decision) for one in drops] == [(1, "refused")]
    assert [event.ticket for _, event in log.events(Trained)] == [1, 2, 3, 4]


def test_several_observers_are_told_the_same_in_their_order() -> None:
    logs = Log(), Log()
    both, done = Observers(*logs), Snapshot(2, 2)
    both.saw(Left(0, 1, "killed"), 1.0)
    both.did(done, 2.0)
    for log in logs:
        assert log.seen == [(1.0, Left(0, 1, "killed"))]
        assert log.done == [(2.0, done)]


def test_a_server_gradient_is_applied_at_the_iteration_before_its_merge() -> None:
    """Two workers of 10 samples each, whose gradients are merged in one step: two iterations of 10 a merge."""
    iterations: list[int] = []
    rule = ServerGradient(lambda gradient, center, iteration: iterations.append(iteration))
    driver, log = driver_of(Plan(BATCH, 6, workers=2), strategy=Synchronous(rule))
    driver.run()
    assert iterations == [0, 2, 4]
    merges = [action for _, action in log.done if isinstance(action, Merge)]
    assert [merge.iteration for merge in merges] == [2, 4, 6]


def test_a_wait_for_workers_is_not_cut_short_by_another_deadline() -> None:
    """The tester, asked at 0.1 s, does not answer within 5 s; the last worker died at 0.15 s."""
    driver, log = driver_of(
        Plan(BATCH, 9, workers=1, test_interval=1),
        has_tester=True,
        limits=Limits(join_s=30.0, test_s=5.0),
    )
    cluster_of(driver).deliver = lambda event: None if isinstance(event, messages.Tested) else event
    cluster_of(driver).die(0, 0.15)
    assert not driver.run().complete
    assert log.events(messages.Tested)[0][0] == 5.1
    assert [now for now, _ in log.events(messages.StopAsked)] == [30.15]


@pytest.mark.parametrize(("hangs_at", "tested"), [(1e9, 60.1), (31.0, 35.1)])
def test_a_test_may_take_as_long_as_it_likes_while_its_batches_get_done(
    hangs_at: float, tested: float
) -> None:
    """60 s, told every third second, where 5 s without a batch are the limit; two tests wait behind it."""
    driver, log = driver_of(
        Plan(BATCH, 3, workers=1, test_interval=1), has_tester=True, limits=Limits(test_s=5.0)
    )
    cluster = cluster_of(driver)
    for batch in range(20):
        if (now := 0.1 + 3.0 * batch) < hangs_at:
            report = messages.Testing(1, batch, 20)
            cluster.at(now, lambda report=report: report)  # type: ignore[misc]

    def later(event: Event) -> Event | None:
        if not isinstance(event, messages.Tested) or cluster.now >= 60.0:
            return event
        if hangs_at > 60.0:
            cluster.at(60.1, lambda: event)
        return None

    cluster.deliver = later
    outcome = driver.run()
    assert log.events(messages.Tested)[0][0] == pytest.approx(tested)
    assert (not outcome.test_problem) == (hangs_at > 60.0)


def test_the_center_of_a_turn_that_was_never_answered_does_not_outlast_the_run() -> None:
    """Worker 1 is at its first turn, on version 0, when somebody ends the run."""
    world = World(jitter=0.0, latency_s=0.0, slowness=lambda worker: (1.0, 50.0)[worker])
    driver, _ = driver_of(Plan(BATCH, 50, workers=2), world)
    cluster_of(driver).at(0.55, lambda: messages.StopAsked("enough"))
    assert driver.run().version == 5
    assert driver.center.store.keys("speedo:run:center") == ["speedo:run:center:5"]


def test_a_version_stays_in_the_store_while_it_is_tested() -> None:
    """The test of version 2 is asked for at 0.2 s, and lasts 0.25 s."""
    driver, log = driver_of(Plan(BATCH, 7, workers=1, test_interval=2), has_tester=True)
    cluster = cluster_of(driver)

    def later(event: Event) -> Event | None:
        if not isinstance(event, messages.Tested):
            return event
        cluster.at(cluster.now + 0.15, lambda: event)
        return None

    cluster.deliver = later
    found: list[list[str]] = []
    for moment in (0.39, 0.49):
        cluster.at(moment, lambda: found.append(driver.center.store.keys("speedo:run:center")))
    assert driver.run().metrics == {"version": 7.0}
    kept = [[key.removeprefix("speedo:run:center:") for key in keys] for keys in found]
    assert kept == [["2", "3"], ["4"]]
    assert log.events(messages.Tested)[0][0] == 0.45
