"""Turns given ahead: what books, deadlines and worker make of a turn whose predecessor is not merged yet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from speedo.exchange.codecs import Compression
from speedo.master.coordinator import Coordinator
from speedo.master.plan import Plan
from speedo.master.turn_deadlines import (
    FEWEST_TURNS,
    HEARTBEAT_S,
    TurnDeadlines,
    TurnsUnderWay,
    TurnUnderWay,
)
from speedo.messages import (
    Action,
    Event,
    Joined,
    Kind,
    Left,
    Merge,
    OwnResults,
    Refused,
    Train,
    Trained,
)
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.base import Strategy
from speedo.sgd_modes.easgd import easgd
from speedo.sgd_modes.rules import AddDelta
from tests.support.receiving import handle
from tests.support.simulation.simulate import simulate
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.world import World

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
        actions = handle(self.coordinator, event)
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
    found = [(one.worker, one.ticket, one.own.pending, one.iteration) for one in books.issued]
    assert found == [(0, 1, 0, 0), (1, 2, 0, 0), (0, 3, 1, 1), (1, 4, 2, 1)]


def test_a_result_brings_one_turn_more_behind_the_one_under_way() -> None:
    books = Books()
    (train,) = trains(books.finish(1))
    assert (train.worker, train.own.pending, train.version, train.iteration) == (0, 3, 1, 2)


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
    assert [(one.worker, one.ticket, one.own.pending) for one in trains(actions)] == [
        (0, 5, 0),
        (0, 6, 5),
    ]
    (drop,) = books.finish(3)
    assert (drop.decision, drop.reason) == ("late", "its ticket is not outstanding")  # type: ignore[union-attr]


def test_a_result_that_overtakes_another_is_merged_and_the_next_turn_waits_for_both() -> None:
    books = Books()
    assert trains(books.finish(3)) == []
    assert [(one.ticket, one.own.pending) for one in trains(books.finish(1))] == [(5, 0), (6, 5)]


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


def test_in_easgd_each_merge_is_caught_up_on_in_the_next_turn_that_is_given() -> None:
    """Its first two turns have nothing to catch up on; the third does, a turn behind the result that was merged."""
    books = Books(easgd(0.3))
    found = [(one.moving_rate, one.own.merged) for one in books.issued]
    assert found == [(None, 0), (None, 0), (0.0, 0), (0.0, 0)]
    (train,) = trains(books.finish(1))
    assert (train.moving_rate, train.own.merged, train.own.pending) == (0.3, 1, 3)
    assert train.carry_over


def test_in_easgd_no_merge_is_caught_up_on_twice() -> None:
    """Two turns after a result that was overtaken: the first catches up, the second has nothing left."""
    books = Books(easgd(0.3))
    assert trains(books.finish(3)) == []
    found = [(one.ticket, one.moving_rate, one.own.merged) for one in trains(books.finish(1))]
    assert found == [(5, 0.3, 1), (6, 0.0, 0)]


# ---------------------------------------------------------------- deadlines


def test_the_clock_of_a_turn_given_ahead_begins_when_the_one_before_it_ends() -> None:
    outstanding = {1, 2}
    deadlines = TurnDeadlines(lambda worker, ticket: ticket in outstanding, 100.0)
    turns = TurnsUnderWay(lambda worker, ticket: ticket in outstanding, deadlines)
    first, second = (
        Train(0, 1, ticket, 0, 0, 1, 1, Kind.DELTA, own=OwnResults(pending=ticket - 1))
        for ticket in (1, 2)
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
        def late(event: Event) -> Event | None:
            if not isinstance(event, Trained):
                return event
            cluster.at(cluster.now + delay_s, lambda: event)
            return None

        cluster.deliver = late

    return script
