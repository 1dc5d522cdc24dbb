"""Turns given ahead: what books, deadlines and worker make of a turn whose predecessor is not merged yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from speedo.compression import NO_COMPRESSION, Compression
from speedo.coordinator import Coordinator, Plan
from speedo.deadlines import FEWEST_TURNS, HEARTBEAT_S, TurnDeadlines, TurnsUnderWay, TurnUnderWay
from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import PayloadError
from speedo.messages import Action, Event, Joined, Left, Merge, Refused, Train, Trained
from speedo.overlap import OverlappingWorker
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.base import Strategy
from speedo.sgd_modes.easgd import easgd
from speedo.sgd_modes.rules import AddDelta
from speedo.simulator import SimulatedCluster, World, simulate
from speedo.storage import keys
from speedo.storage.base import Store
from speedo.storage.memory_store import MemoryStore
from speedo.storage.shared_memory_store import SharedMemoryStore
from speedo.vectors_in_store import fetch_vector
from speedo.weights import Blob, Kind, Layout, Vector, as_bytes, header_for

BATCH = 10


# ---------------------------------------------------------------- the books


class Books:
    """A coordinator of turns given ahead, with a memory of what it issued."""

    def __init__(self, strategy: Strategy | None = None, workers: int = 2, **plan: int) -> None:
        work = Plan(batch=BATCH, workers=workers, **{"max_iter": 1000, **plan})
        self.coordinator = Coordinator(strategy or Asynchronous(AddDelta()), work)
        self.issued: list[Train] = []
        for worker in range(workers):
            self.do(Joined(worker, 1, BATCH, depth=2))

    def do(self, event: Event) -> list[Action]:
        actions = self.coordinator.handle(event)
        self.issued += [action for action in actions if isinstance(action, Train)]
        return actions

    def finish(self, ticket: int) -> list[Action]:
        train = self.train(ticket)
        return self.do(Trained(train.worker, 1, ticket, 0.5, BATCH * train.steps))

    def train(self, ticket: int) -> Train:
        return next(train for train in self.issued if train.ticket == ticket)


def trains(actions: list[Action]) -> list[Train]:
    return [action for action in actions if isinstance(action, Train)]


def test_each_worker_gets_one_turn_and_then_each_one_ahead() -> None:
    books = Books()
    found = [(one.worker, one.ticket, one.after, one.iteration) for one in books.issued]
    assert found == [(0, 1, 0, 0), (1, 2, 0, 0), (0, 3, 1, 1), (1, 4, 2, 1)]


def test_a_result_brings_one_turn_more_behind_the_one_under_way() -> None:
    books = Books()
    (train,) = trains(books.finish(1))
    assert (train.worker, train.after, train.version, train.iteration) == (0, 3, 1, 2)


def test_an_own_result_makes_no_turn_staler() -> None:
    books = Books()
    staleness = []
    for ticket in (1, 2, 3, 5, 4):
        (merge,) = (one for one in books.finish(ticket) if isinstance(one, Merge))
        staleness.append(merge.parts[0].staleness)
    assert staleness == [0, 1, 1, 1, 3]


def test_what_was_given_ahead_of_a_refused_result_ends_with_it() -> None:
    books = Books()
    actions = books.do(Refused(0, 1, 1, "not finite"))
    assert [(one.worker, one.ticket, one.after) for one in trains(actions)] == [
        (0, 5, 0),
        (0, 6, 5),
    ]
    (drop,) = books.finish(3)
    assert (drop.decision, drop.reason) == ("late", "its ticket is not outstanding")  # type: ignore[union-attr]


def test_a_result_that_overtakes_another_is_merged_and_the_next_turn_waits_for_both() -> None:
    books = Books()
    assert trains(books.finish(3)) == []
    assert [(one.ticket, one.after) for one in trains(books.finish(1))] == [(5, 0), (6, 5)]


@pytest.mark.parametrize("iterations", [1, 2, 3, 7])
def test_no_more_is_issued_than_the_work_needs(iterations: int) -> None:
    books = Books(max_iter=iterations)
    while not books.coordinator.finished:
        books.finish(min(books.coordinator.members[0].turns + books.coordinator.members[1].turns,
                         key=lambda turn: turn.ticket).ticket)  # fmt: skip
    assert len(books.issued) == iterations
    assert books.coordinator.samples == BATCH * iterations


def test_a_worker_that_left_owes_nothing() -> None:
    books = Books(max_iter=4)
    books.do(Left(0, 1, "killed"))
    assert [one.worker for one in books.issued] == [0, 1, 0, 1]
    books.finish(2)
    assert [(one.worker, one.ticket) for one in books.issued[4:]] == [(1, 5)]


def test_in_easgd_each_turn_ahead_is_pulled_by_the_present_rate() -> None:
    books = Books(easgd(0.3))
    assert [one.moving_rate for one in books.issued] == [None, None, 0.3, 0.3]
    (train,) = trains(books.finish(1))
    assert (train.moving_rate, train.after, train.carry_over) == (0.3, 3, True)


# ---------------------------------------------------------------- deadlines


def test_the_clock_of_a_turn_given_ahead_begins_when_the_one_before_it_ends() -> None:
    outstanding = {1, 2}
    deadlines = TurnDeadlines(lambda worker, ticket: ticket in outstanding, 100.0)
    turns = TurnsUnderWay(lambda worker, ticket: ticket in outstanding, deadlines)
    first, second = (
        Train(0, 1, ticket, 0, 0, 1, 1, Kind.DELTA, after=ticket - 1) for ticket in (1, 2)
    )
    for _ in range(FEWEST_TURNS):
        deadlines.measure(TurnUnderWay(first, 0.0), 2.0)
    turns.issue(first, 0.0)
    turns.issue(second, 0.0)
    limit = 3 * 2.0 + HEARTBEAT_S
    assert deadlines.soonest() == limit
    outstanding.remove(1)
    assert turns.settle(0, 5.0) == [first]
    assert deadlines.soonest() == 5.0 + limit
    assert turns.first(0) == TurnUnderWay(second, 5.0)
    outstanding.clear()
    assert turns.settle(0, 6.0) == [second]
    assert not turns


# ---------------------------------------------------------------- the worker


class HalfStatistics(QuadraticEngine):
    """Says that the second half of its weights are BatchNorm's."""

    def __init__(self) -> None:
        super().__init__(4, batch=BATCH, momentum=0.9)
        self._layout = Layout((Blob("w/0", (2,)), Blob("w/1", (2,), True)))

    def change_weights(self, change: Callable[[Blob, slice, Vector], None]) -> None:
        for blob, place in self._layout.slices():
            change(blob, place, self._weights[place])


def worker_of(
    store: Store, compression: Compression = NO_COMPRESSION, engine: QuadraticEngine | None = None
) -> OverlappingWorker:
    engine = engine or QuadraticEngine(4, batch=BATCH, momentum=0.9)
    worker = OverlappingWorker(
        "run", 0, 1, engine, store, lambda: 0.0, compression=compression, outgoing=store
    )
    publish(worker, np.zeros(4, np.float32), 0)
    return worker


def publish(worker: OverlappingWorker, center: Vector, version: int) -> None:
    body = as_bytes(center)
    header = header_for(body, worker.engine.layout, Kind.CENTER, version=version)
    worker.store.write(keys.center("run", version), header.pack(), body)


def result(worker: OverlappingWorker, ticket: int, kind: Kind = Kind.DELTA) -> Vector:
    vector = worker.engine.layout.zeros()
    fetch_vector(worker.store, keys.payload("run", 0, ticket), worker.engine.layout, kind, vector)
    return vector


def train(ticket: int, **change: object) -> Train:
    return replace(Train(0, 1, ticket, 0, 0, 1, 1, Kind.DELTA), **change)  # type: ignore[arg-type]


@pytest.fixture(params=["views", "copies"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "copies":
        return MemoryStore(clock=lambda: 0.0)
    monkeypatch.setattr("speedo.storage.shared_memory_store._LONG", 1)
    return SharedMemoryStore(tmp_path)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_turn_begins_where_the_center_will_be_with_its_own_result(
    store: Store, steps: int
) -> None:
    worker, waits = worker_of(store), QuadraticEngine(4, batch=BATCH, momentum=0.9)
    worker.turn(train(1, steps=steps))
    waits.step(steps)
    first = result(worker, 1)
    worker.turn(train(2, steps=steps, after=1, after_rate=0.5))
    waits.load_weights(np.float32(0.5) * first)
    expected = np.empty(4, np.float32)
    before = np.float32(0.5) * first
    waits.step(steps, expected)
    if steps > 1:
        waits.read_weights(expected)
        expected -= before
    np.testing.assert_array_equal(result(worker, 2), expected)


def test_weights_are_pulled_towards_a_center_that_does_not_know_them(store: Store) -> None:
    """Zhang et al. 2015, eq. 2: x -= alpha (x - center). The worker's half of a merge that is still to come."""
    worker, engine = worker_of(store), QuadraticEngine(4, batch=BATCH, momentum=0.9)
    worker.turn(train(1, payload=Kind.WEIGHTS))
    engine.step(1)
    own, center = result(worker, 1, Kind.WEIGHTS), np.full(4, 2.0, np.float32)
    publish(worker, center, 1)
    worker.turn(train(2, payload=Kind.WEIGHTS, version=1, moving_rate=0.25, after=1))
    engine.load_weights(own - np.float32(0.25) * (own - center))
    engine.step(1)
    engine.read_weights(own)
    np.testing.assert_allclose(result(worker, 2, Kind.WEIGHTS), own, rtol=1e-6)


def test_without_the_result_before_it_a_turn_fails_and_the_next_begins_anew(store: Store) -> None:
    worker = worker_of(store)
    worker.turn(train(1))
    for ticket in range(3, 13, 2):
        with pytest.raises(PayloadError, match=f"before it, ticket {ticket - 1}, had no result"):
            worker.turn(train(ticket, after=ticket - 1))
        store.write(keys.center("run", 8), *as_written(worker, 7))
        with pytest.raises(PayloadError, match="holds version 7"):
            worker.turn(train(ticket + 1, version=8))
    worker.turn(train(20))
    worker.turn(train(21, after=20))
    assert np.any(result(worker, 21))


def as_written(worker: OverlappingWorker, version: int) -> tuple[bytes, memoryview]:
    """A center of this version, head and body."""
    body = as_bytes(np.zeros(4, np.float32))
    return header_for(body, worker.engine.layout, Kind.CENTER, version=version).pack(), body


def test_statistics_of_a_compressed_result_are_added_whole(store: Store) -> None:
    """A codec sends BatchNorm's sums beside the rest, and its encoding must leave the own result as it was."""
    worker = worker_of(store, Compression("int8"), HalfStatistics())
    worker.turn(train(1))
    exact = worker_of(MemoryStore(clock=lambda: 0.0), engine=HalfStatistics())
    exact.turn(train(1))
    for one in (worker, exact):
        one.turn(train(2, after=1))
    found, expected = (one.engine.layout.zeros() for one in (worker, exact))
    worker.engine.read_weights(found)
    exact.engine.read_weights(expected)
    np.testing.assert_array_equal(found, expected)


# ---------------------------------------------------------------- whole runs


@pytest.mark.parametrize("local_steps", [1, 4])
@pytest.mark.parametrize("compress", ["none", "int8"])
def test_one_worker_trains_as_if_it_had_waited(local_steps: int, compress: str) -> None:
    """To the bit where nothing is lost on the way."""
    centers = []
    for overlap in ((), (0, 1)):
        plan = Plan(BATCH, 60, workers=1)
        strategy = Asynchronous(AddDelta(), local_steps)
        simulation = simulate(
            strategy,
            plan,
            momentum=0.9,
            world=World(compression=Compression(compress)),
            overlap=overlap,
        )
        assert simulation.outcome.complete
        centers.append(simulation.center.vector)
    if compress == "none":
        assert centers[0].tobytes() == centers[1].tobytes()
    else:
        np.testing.assert_allclose(centers[0], centers[1], rtol=0.05)


@pytest.mark.parametrize("strategy", [Asynchronous(AddDelta()), easgd()], ids=["async", "easgd"])
def test_workers_that_are_given_turns_ahead_never_wait_for_the_master(strategy: Strategy) -> None:
    """A message that takes as long as a turn costs half of the time, unless the next turn lies ready."""
    seconds = {}
    for overlap in ((), (0, 1)):
        plan = Plan(BATCH, 200, workers=2)
        world = World(step_s=0.1, jitter=0.0, latency_s=0.0)
        simulation = simulate(
            strategy, plan, world=world, script=slow_answers(0.1), overlap=overlap
        )
        assert simulation.outcome.complete
        seconds[len(overlap)] = simulation.outcome.seconds
    assert seconds[2] < 0.55 * seconds[0]


def slow_answers(delay_s: float) -> Callable[[SimulatedCluster], None]:
    """Results reach the master so much later."""

    def script(cluster: SimulatedCluster) -> None:
        real = cluster._turn

        def late(*arguments: object) -> None:
            answer = real(*arguments)  # type: ignore[arg-type]
            cluster.at(cluster.now + delay_s, lambda: answer)

        cluster._turn = late  # type: ignore[method-assign,assignment]

    return script
