"""Who is told to leave, at moments that the simulator seldom meets; and the time that the end of a run has."""

from __future__ import annotations

import math

from speedo.master.coordinator import Coordinator
from speedo.master.leaving import Leavers, Notice
from speedo.master.plan import Plan
from speedo.master.turn_book import Receive
from speedo.messages import Joined, Leaving, Left, Merge, Train, Trained
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.rules import AddDelta

TOLD = Leaving(0, 1, "its host leaves: SIGTERM")
LEFT = [Left(0, 1, "its host leaves: SIGTERM")]


def begun(depth: int = 1, workers: int = 1) -> tuple[Coordinator, Leavers, list[Train]]:
    """A run with a worker that has a turn, or two, of five steps of four samples."""
    coordinator = Coordinator(Asynchronous(AddDelta(), 5), Plan(4, 100, workers))
    actions = coordinator.handle(Joined(0, 1, 4, depth))
    assert isinstance(actions, list)
    return coordinator, Leavers(coordinator), [one for one in actions if isinstance(one, Train)]


def answered(coordinator: Coordinator, train: Train, samples: int) -> list[object]:
    receive = coordinator.handle(Trained(0, 1, train.ticket, 1.0, samples))
    assert isinstance(receive, Receive)
    return [*coordinator.handle(receive)]


def test_a_shorter_turn_counts_as_what_it_is_once_its_worker_is_told_to_leave() -> None:
    coordinator, leavers, (train,) = begun()
    leavers.told(TOLD)
    assert leavers.done() == []
    (merge,) = answered(coordinator, train, 8)
    assert isinstance(merge, Merge)
    assert [(part.samples, part.steps) for part in merge.parts] == [(8, 2)]
    assert leavers.done() == LEFT
    assert leavers.done() == []


def test_before_that_nobody_is_credited_with_less_than_was_asked_for() -> None:
    coordinator, _, (train,) = begun()
    merge, *_ = answered(coordinator, train, 8)
    assert isinstance(merge, Merge)
    assert merge.samples_seen == 20


def test_both_turns_of_a_worker_that_was_given_one_ahead_are_waited_for() -> None:
    coordinator, leavers, (first, second) = begun(depth=2)
    leavers.told(TOLD)
    leavers.told(TOLD)
    answered(coordinator, first, 4)
    assert leavers.done() == []
    answered(coordinator, second, 4)
    assert (leavers.done(), coordinator.samples) == (LEFT, 8)


def test_who_has_no_turn_is_let_go_at_once_and_a_stranger_is_nobody() -> None:
    _, leavers, trains = begun(workers=2)
    assert trains == []
    leavers.told(Leaving(0, 7, "of another incarnation"))
    leavers.told(Leaving(5, 1, "not there"))
    assert leavers.done() == []
    leavers.told(TOLD)
    assert leavers.done() == LEFT


def test_a_notice_leaves_time_for_checkpoint_and_export() -> None:
    notice = Notice()
    assert (notice.for_histories_s, notice.test_by(50.0), notice.no_test) == (math.inf, 50.0, "")
    notice.given(10.0, 0.0)
    notice.given(10.0, 20.0)
    notice.given(15.0, 600.0)
    assert (notice.for_histories_s, notice.test_by(50.0), notice.test_by(12.0)) == (5.0, 24.0, 12.0)
    assert "a notice of 20 s was too short" in notice.no_test
