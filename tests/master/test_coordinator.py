"""The books of a run: tickets, versions, iterations, staleness, and what happens to bad results."""

from __future__ import annotations

import pytest

from speedo.master.coordinator import STRIKES, Coordinator
from speedo.master.plan import Plan
from speedo.master.turn_book import Receive
from speedo.messages import (
    Action,
    Drop,
    Evaluate,
    Finish,
    Joined,
    Left,
    Merge,
    Refused,
    SetAside,
    Snapshot,
    StopAsked,
    Train,
    Trained,
    Waiting,
)
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.base import Strategy
from speedo.sgd_modes.easgd import easgd
from speedo.sgd_modes.partial import Partial
from speedo.sgd_modes.rules import AddDelta, AverageDeltas, Elastic
from speedo.sgd_modes.synchronous import Synchronous
from speedo.sgd_modes.weed_out import WeedOut
from tests.support.receiving import handle


class Run:
    """A coordinator with a memory of who holds which ticket."""

    def __init__(
        self, strategy: Strategy, *, workers: int, batch: int = 10, share: int = 10, **plan: int
    ) -> None:
        self.coordinator = Coordinator(
            strategy, Plan(batch=batch, workers=workers, **{"max_iter": 1000, **plan})
        )
        self.tickets: dict[int, Train] = {}
        self.share = share
        for worker in range(workers):
            self.last = self.do(Joined(worker, 1, share))

    def do(self, event: object) -> list[Action]:
        actions = handle(self.coordinator, event)  # type: ignore[arg-type]
        for action in actions:
            if isinstance(action, Train):
                self.tickets[action.worker] = action
        return actions

    def finish(self, worker: int) -> list[Action]:
        train = self.tickets[worker]
        return self.do(
            Trained(worker, train.incarnation, train.ticket, 0.5, train.steps * self.share)
        )


def of(actions: list[Action], kind: type) -> list[Action]:
    return [action for action in actions if isinstance(action, kind)]


def trained_workers(actions: list[Action]) -> list[int]:
    return [action.worker for action in actions if isinstance(action, Train)]


def test_nobody_trains_before_all_expected_workers_are_there() -> None:
    coordinator = Coordinator(Asynchronous(AddDelta()), Plan(10, 100, workers=3))
    assert handle(coordinator, Joined(0, 1, 10)) == []
    assert handle(coordinator, Joined(1, 1, 10)) == []
    assert coordinator.short_of_workers
    assert trained_workers(handle(coordinator, Joined(2, 1, 10))) == [0, 1, 2]
    assert not coordinator.short_of_workers


def test_a_result_is_received_before_anything_follows_from_it() -> None:
    run = Run(Asynchronous(AddDelta()), workers=1)
    event = Trained(0, 1, run.tickets[0].ticket, 0.5, 10)
    answer = run.coordinator.handle(event)
    assert answer == Receive(event, run.coordinator.strategy.rule)
    assert (run.coordinator.received, run.coordinator.samples) == (0, 0)
    merge, train = run.do(answer)
    assert isinstance(merge, Merge)
    assert isinstance(train, Train)
    assert (run.coordinator.received, run.coordinator.samples) == (1, 10)


def test_a_payload_that_cannot_be_merged_is_a_refused_result() -> None:
    run = Run(Asynchronous(AddDelta()), workers=1)
    event = Trained(0, 1, run.tickets[0].ticket, 0.5, 10)
    assert isinstance(run.coordinator.handle(event), Receive)
    drop, train = run.do(Refused(0, 1, event.ticket, "NaN"))
    assert isinstance(drop, Drop)
    assert drop.decision == "refused"
    assert isinstance(train, Train)
    assert (run.coordinator.received, run.coordinator.samples) == (0, 0)


def test_a_result_merges_once_and_its_repetition_is_late() -> None:
    run = Run(Asynchronous(AddDelta()), workers=2)
    first = run.tickets[0]
    assert len(of(run.finish(0), Merge)) == 1
    (drop,) = run.do(Trained(0, 1, first.ticket, 0.5, 10))
    assert isinstance(drop, Drop)
    assert (drop.decision, drop.reason) == ("late", "its ticket is not outstanding")
    assert run.coordinator.version == 1


@pytest.mark.parametrize(
    ("worker", "incarnation", "reason"),
    [(7, 1, "its worker is not in the run"), (0, 2, "it is of incarnation 2, the worker's is 1")],
)
def test_a_foreign_result_is_refused(worker: int, incarnation: int, reason: str) -> None:
    run = Run(Asynchronous(AddDelta()), workers=1)
    (drop,) = run.do(Trained(worker, incarnation, run.tickets[0].ticket, 0.5, 10))
    assert isinstance(drop, Drop)
    assert drop.reason == reason


def test_a_result_of_a_worker_that_left_is_late() -> None:
    run = Run(Asynchronous(AddDelta()), workers=2)
    run.do(Left(0, 1, "killed"))
    (drop,) = run.finish(0)
    assert isinstance(drop, Drop)
    assert drop.decision == "late"


def test_a_worker_that_returns_has_a_new_incarnation_and_the_newest_center() -> None:
    run = Run(Asynchronous(AddDelta()), workers=2)
    run.do(Left(0, 1, "killed"))
    run.finish(1)
    run.finish(1)
    (train,) = run.do(Joined(0, 2, 10))
    assert isinstance(train, Train)
    assert (train.incarnation, train.version, train.moving_rate) == (2, 2, None)


def test_versions_grow_by_one_and_iterations_count_samples() -> None:
    run = Run(Asynchronous(AddDelta()), workers=2, batch=20, share=10)
    merges = [of(run.finish(worker), Merge)[0] for worker in (0, 1, 0, 1)]
    assert [merge.version for merge in merges] == [1, 2, 3, 4]
    assert [merge.iteration for merge in merges] == [0, 1, 1, 2]
    assert [merge.samples_seen for merge in merges] == [10, 20, 30, 40]


def test_weed_out_sequence_of_five_results() -> None:
    """Window 3, three workers, results 0, 1, 1, 0, 2: the fourth merges, the fifth is discarded, 2 restarts."""
    run = Run(WeedOut(AddDelta(), window=3), workers=3)
    for worker in (0, 1, 1):
        run.finish(worker)
    fourth = run.finish(0)
    assert [part.staleness for part in of(fourth, Merge)[0].parts] == [2]
    drop, train = run.finish(2)
    assert (drop.decision, drop.staleness) == ("discarded", 4)
    assert (train.worker, train.version, train.moving_rate) == (2, 4, None)


def test_sync_split_batch_is_one_iteration_a_round() -> None:
    run = Run(Synchronous(AverageDeltas()), workers=2, batch=20, share=10)
    assert run.finish(0) == []
    merge, first, second = run.finish(1)
    assert (merge.iteration, len(merge.parts)) == (1, 2)
    assert (first.iteration, first.iteration_of(1), second.iteration) == (1, 2, 1)


def test_whole_batches_advance_as_many_iterations_a_step_as_there_are_workers() -> None:
    run = Run(Asynchronous(AddDelta(), local_steps=4), workers=3)
    assert {train.iteration_of(4) for train in run.tickets.values()} == {12}


@pytest.mark.parametrize(("workers", "batch", "share"), [(2, 10, 3), (3, 10, 8), (2, 20, 10)])
def test_local_steps_move_the_learning_rate_by_what_all_workers_train(
    workers: int, batch: int, share: int
) -> None:
    """Shares of a divided batch of which some are missing, or more than it: no step is rounded to an iteration."""
    run = Run(
        Synchronous(AverageDeltas(), local_steps=7), workers=workers, batch=batch, share=share
    )
    asked = []
    for _ in range(3):
        first = run.tickets[0]
        asked += [first.iteration_of(step) for step in range(7)]
        for worker in range(workers):
            run.finish(worker)
    assert asked == [step * workers * share // batch for step in range(21)]


def test_no_more_turns_are_issued_than_there_is_work() -> None:
    run = Run(Asynchronous(AddDelta(), local_steps=4), workers=2, max_iter=10)
    assert [run.tickets[worker].steps for worker in (0, 1)] == [4, 4]
    (merge, last) = run.finish(0)
    assert last.steps == 2
    assert trained_workers(run.finish(1)) == []
    assert run.coordinator.iteration == 8
    merge, finish = run.finish(0)
    assert (merge.iteration, finish) == (10, Finish(True, "reached max_iter 10"))


def test_the_last_sync_round_is_shortened_for_all_alike() -> None:
    run = Run(
        Synchronous(AverageDeltas(), local_steps=4), workers=2, batch=20, share=10, max_iter=6
    )
    assert [run.tickets[worker].steps for worker in (0, 1)] == [4, 4]
    run.finish(0)
    run.finish(1)
    assert [run.tickets[worker].steps for worker in (0, 1)] == [2, 2]
    run.finish(1)
    assert run.finish(0)[-1] == Finish(True, "reached max_iter 6")


def test_sync_needs_only_as_many_workers_as_the_rest_of_the_work() -> None:
    run = Run(Synchronous(AverageDeltas()), workers=3, max_iter=4)
    for worker in (0, 1):
        run.finish(worker)
    assert trained_workers(run.finish(2)) == [0]
    assert run.finish(0)[-1] == Finish(True, "reached max_iter 4")


def test_work_of_a_worker_lost_at_the_end_goes_to_one_that_waits() -> None:
    run = Run(Asynchronous(AddDelta()), workers=2, max_iter=2)
    assert trained_workers(run.finish(0)) == []
    assert trained_workers(run.do(Left(1, 1, "killed"))) == [0]
    assert run.finish(0)[-1] == Finish(True, "reached max_iter 2")


def test_easgd_goes_on_from_its_own_weights_with_the_rate_of_its_merge() -> None:
    run = Run(easgd(), workers=2)
    assert run.tickets[0].moving_rate is None
    merge, train = run.finish(0)
    assert merge.rate == pytest.approx(0.45)
    assert train.moving_rate == merge.rate
    assert train.version == merge.version


def test_elastic_weed_out_starts_from_the_center_after_a_discard() -> None:
    run = Run(WeedOut(Elastic(0.3), window=1), workers=1)
    run.finish(0)
    assert run.tickets[0].moving_rate == 0.3
    run.do(Joined(1, 1, 10))
    run.finish(0)
    run.finish(0)
    drop, train = run.finish(1)
    assert (drop.decision, train.moving_rate) == ("discarded", None)


def test_elastic_partial_resumes_a_held_worker_from_the_newest_center() -> None:
    run = Run(Partial(Elastic(0.3), max_advance=1), workers=2)
    run.finish(0)
    run.finish(1)
    assert run.tickets[1].moving_rate == 0.3
    assert (run.tickets[0].moving_rate, run.tickets[0].version) == (None, 2)


def test_a_refused_result_costs_its_worker_the_turn_and_nobody_else() -> None:
    run = Run(Synchronous(AverageDeltas()), workers=2)
    run.finish(0)
    actions = run.do(Refused(1, 1, run.tickets[1].ticket, "NaN"))
    assert of(actions, Drop)[0].decision == "refused"
    assert [part.worker for part in of(actions, Merge)[0].parts] == [0]
    assert trained_workers(actions) == [0]
    assert trained_workers(run.finish(0)) == [0, 1]


def test_a_worker_is_set_aside_after_a_few_refused_results() -> None:
    run = Run(Asynchronous(AddDelta()), workers=2)
    for _ in range(STRIKES - 1):
        assert trained_workers(run.do(Refused(0, 1, run.tickets[0].ticket, "NaN"))) == [0]
    actions = run.do(Refused(0, 1, run.tickets[0].ticket, "NaN"))
    assert len(of(actions, SetAside)) == 1
    assert set(run.coordinator.members) == {1}


def test_a_good_result_forgives_the_bad_ones_before_it() -> None:
    run = Run(Asynchronous(AddDelta()), workers=2)
    for _ in range(2 * STRIKES):
        run.do(Refused(0, 1, run.tickets[0].ticket, "NaN"))
        run.finish(0)
    assert set(run.coordinator.members) == {0, 1}


def test_a_run_whose_last_worker_is_set_aside_ends_with_the_reason() -> None:
    run = Run(Asynchronous(AddDelta()), workers=1)
    for _ in range(STRIKES):
        actions = run.do(Refused(0, 1, run.tickets[0].ticket, "it is not finite"))
    assert isinstance(actions[-1], Finish)
    assert not actions[-1].complete
    assert "it is not finite" in actions[-1].reason


def test_below_min_workers_nobody_trains_until_one_joins() -> None:
    run = Run(Asynchronous(AddDelta()), workers=2, min_workers=2)
    waits = "waits for workers: 1 of at least 2 are there"
    assert run.do(Left(0, 1, "killed")) == [Waiting(waits)]
    (drop,) = run.finish(1)
    assert (drop.worker, drop.decision, drop.reason) == (1, "discarded", waits)
    assert run.coordinator.short_of_workers
    enough, *trains = run.do(Joined(0, 2, 10))
    assert (enough, trained_workers(trains)) == (Waiting(""), [0, 1])
    assert len(of(run.finish(1), Merge)) == 1


def test_nothing_is_merged_of_a_round_in_which_too_few_workers_were_there() -> None:
    run = Run(Synchronous(AverageDeltas()), workers=3, min_workers=3)
    run.finish(0)
    waits = "waits for workers: 2 of at least 3 are there"
    assert run.do(Left(1, 1, "killed")) == [Waiting(waits)]
    assert run.do(Joined(1, 2, 10)) == [Waiting("")]
    actions = run.finish(2)
    drops = of(actions, Drop)
    assert [(one.worker, one.reason) for one in drops] == [(0, waits), (2, waits)]
    assert trained_workers(actions) == [0, 1, 2]
    run.finish(0)
    run.finish(1)
    assert len(of(run.finish(2), Merge)[0].parts) == 3


def test_tests_and_snapshots_come_when_their_iteration_is_crossed() -> None:
    run = Run(Asynchronous(AddDelta(), local_steps=3), workers=1, test_interval=5, snapshot=10)
    found = [[(type(a).__name__, a.iteration) for a in run.finish(0) if isinstance(a, Evaluate | Snapshot)]
             for _ in range(4)]  # fmt: skip
    assert found == [[], [("Evaluate", 6)], [], [("Evaluate", 12), ("Snapshot", 12)]]


def test_the_first_test_comes_before_training_if_the_solver_wants_it() -> None:
    coordinator = Coordinator(
        Asynchronous(AddDelta()),
        Plan(10, 100, workers=1, test_interval=5, test_initialization=True),
    )
    first, second = handle(coordinator, Joined(0, 1, 10))
    assert first == Evaluate(0, 0)
    assert isinstance(second, Train)


def test_a_stop_ends_the_run_and_accounts_for_results_held() -> None:
    run = Run(Synchronous(AverageDeltas()), workers=2)
    run.finish(0)
    drop, finish = run.do(StopAsked("Ctrl-C"))
    assert (drop.decision, drop.worker) == ("discarded", 0)
    assert finish == Finish(False, "Ctrl-C")
    (late,) = run.finish(1)
    assert late.reason == "the run is over"


def test_a_worker_that_left_before_the_start_is_given_no_turn() -> None:
    coordinator = Coordinator(Asynchronous(AddDelta()), Plan(10, 100, workers=2))
    assert handle(coordinator, Joined(0, 1, 10)) == []
    assert handle(coordinator, Left(0, 1, "killed")) == []
    assert handle(coordinator, Joined(1, 1, 10)) == []
    trains = handle(coordinator, Joined(2, 1, 10))
    assert [(one.worker, one.ticket) for one in trains if isinstance(one, Train)] == [
        (1, 1),
        (2, 2),
    ]


def test_a_result_that_is_not_waited_for_is_told_with_its_loss() -> None:
    run = Run(Asynchronous(AddDelta()), workers=1)
    assert run.do(Trained(3, 1, 77, 0.25, 10)) == [
        Drop(3, 1, 77, "late", "its worker is not in the run", 0, 0.25)
    ]
    (drop,) = run.do(Refused(0, 1, 77, "NaN"))
    assert isinstance(drop, Drop)
    assert (drop.decision, drop.reason, drop.staleness) == (
        "late",
        "its ticket is not outstanding",
        0,
    )


def ended(worker: int) -> Left:
    return Left(worker, 1, "its script has ended", done=True)


def test_a_run_is_complete_once_every_worker_has_left_with_its_work_done() -> None:
    run = Run(Asynchronous(AddDelta()), workers=2)
    run.finish(0)
    assert of(run.do(ended(0)), Finish) == []
    merge, _ = run.finish(1)  # it trains on alone
    assert run.do(ended(1)) == [Finish(True, "every script has ended")]
    assert run.coordinator.version == merge.version == 2


def test_a_round_does_not_wait_for_a_worker_whose_work_is_done() -> None:
    run = Run(Synchronous(AverageDeltas()), workers=2)
    run.finish(0)
    merge, train = run.do(ended(1))
    assert [part.worker for part in merge.parts] == [train.worker] == [0]
    assert run.do(ended(0)) == [Finish(True, "every script has ended")]


def test_a_worker_that_died_is_waited_for_though_all_others_are_done() -> None:
    run = Run(Asynchronous(AddDelta()), workers=2)
    run.finish(0)
    run.do(Left(0, 1, "killed"))
    assert of(run.do(ended(1)), Finish) == []
    assert run.coordinator.short_of_workers
    run.do(Joined(0, 2, 10))
    run.finish(0)
    assert run.do(Left(0, 2, "its script has ended", done=True)) == [
        Finish(True, "every script has ended")
    ]


def test_a_death_of_the_last_worker_does_not_complete_the_run() -> None:
    run = Run(Asynchronous(AddDelta()), workers=2)
    run.finish(0)
    run.do(ended(0))
    assert of(run.do(Left(1, 1, "killed")), Finish) == []
    assert run.coordinator.short_of_workers


def test_workers_whose_work_is_done_are_not_missed() -> None:
    run = Run(Asynchronous(AddDelta()), workers=2, min_workers=2)
    run.do(ended(0))
    assert trained_workers(run.finish(1)) == [1]
    assert not run.coordinator.short_of_workers


def test_scripts_that_end_without_a_merged_result_have_trained_nothing() -> None:
    run = Run(Asynchronous(AddDelta()), workers=1)
    assert run.do(ended(0)) == [Finish(False, "every script has ended")]


@pytest.mark.parametrize("first", ["ends", "is set aside"])
def test_a_worker_that_is_set_aside_is_not_waited_for_once_all_others_are_done(first: str) -> None:
    run = Run(Asynchronous(AddDelta()), workers=2)
    run.finish(0)
    actions = run.do(ended(0)) if first == "ends" else []
    for _ in range(STRIKES):
        actions = run.do(Refused(1, 1, run.tickets[1].ticket, "it is not finite"))
    if first != "ends":
        actions = run.do(ended(0))
    (finish,) = of(actions, Finish)
    assert not finish.complete
    assert "every script has ended; worker 1 was set aside: 3 results in a row" in finish.reason
