"""A master that has taken over waits for the workers of the former one, and does what that one has left undone."""

from __future__ import annotations

import pytest

from speedo.master.coordinator import Coordinator
from speedo.master.driver import Limits
from speedo.master.plan import Plan
from speedo.messages import Drop, Finish, Joined, Left, Merge, Trained
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.base import Strategy
from speedo.sgd_modes.rules import AverageDeltas, Elastic
from speedo.sgd_modes.synchronous import Synchronous
from tests.master.test_driver_parts import BATCH, Kept, cluster_of, driver_of
from tests.support.receiving import handle

WORKERS = 4


def book_of(strategy: Strategy) -> Coordinator:
    """Of a master that has taken over at version 7, of which all workers had turns."""
    return Coordinator(
        strategy,
        Plan(BATCH, 1000, WORKERS),
        version=7,
        samples=70,
        first_ticket=1000,
        received=7,
        started=True,
        awaited=set(range(WORKERS)),
    )


def brings(worker: int) -> tuple[Joined, Trained]:
    handed = Trained(worker, 1, 100 + worker, 0.5, BATCH)
    return Joined(worker, 1, BATCH, handed=handed, begun=7), handed


@pytest.mark.parametrize("strategy", [Asynchronous(Elastic()), Synchronous(AverageDeltas())])
def test_results_of_a_former_masters_turns_are_merged_as_those_of_the_whole_cluster(
    strategy: Strategy,
) -> None:
    """Four workers were merged with 0.9, 0.45, 0.3 and 0.225; in sync one was a round, and three came late."""
    book, results = book_of(strategy), list[Trained]()
    for worker in range(WORKERS):
        joined, handed = brings(worker)
        results.append(handed)
        assert handle(book, joined) == []
    done = [action for result in results for action in handle(book, result)]
    merges = [one for one in done if isinstance(one, Merge)]
    assert not [one for one in done if isinstance(one, Drop)]
    if isinstance(strategy, Synchronous):
        assert [[part.ticket for part in one.parts] for one in merges] == [[100, 101, 102, 103]]
    else:
        assert [one.rate for one in merges] == [0.225] * WORKERS


def test_who_has_left_is_not_waited_for() -> None:
    book = book_of(Synchronous(AverageDeltas()))
    for worker in (0, 1, 2):
        assert handle(book, brings(worker)[0]) == []
    handle(book, Left(2, 1, "killed"))  # with its result
    handle(book, Left(3, 1, "its host is gone"))
    done = [action for one in (0, 1) for action in handle(book, brings(one)[1])]
    [merge] = [one for one in done if isinstance(one, Merge)]
    assert [part.worker for part in merge.parts] == [0, 1]


def test_a_worker_that_is_not_back_after_some_seconds_comes_with_a_later_round() -> None:
    driver, log = driver_of(
        Plan(BATCH, 60, WORKERS), None, 0, Synchronous(AverageDeltas()), taken_over=True
    )
    driver.coordinator.awaited, driver.coordinator.started = set(range(WORKERS)), True
    for worker, moment in enumerate((0.0, 1.0, 4.0, 5.35)):
        cluster_of(driver).join(worker, moment)
    driver.run()
    merges = [(now, len(one.parts)) for now, one in log.done if isinstance(one, Merge)]
    # 5 s after the first was back, and a turn of 0.1 s
    assert merges[:5] == [(5.1, 3), (5.2, 3), (5.3, 3), (5.4, 3), (5.5, 4)]


@pytest.mark.parametrize("is_back", [False, True])
def test_the_end_that_a_former_master_has_left_undone_is_done(is_back: bool) -> None:
    """Its last merge was the last of the run. Nobody may be there any more: hosts leave when the run is over."""
    kept = Kept()
    driver, log = driver_of(
        Plan(BATCH, 7, WORKERS),
        None,
        0,
        taken_over=True,
        has_tester=True,
        checkpoints=kept,
        limits=Limits(return_s=3.0),
    )
    book = driver.coordinator
    book.samples, book.version, book.started, book.awaited = 7 * BATCH, 7, True, {0, 1}
    driver.center.version = 7  # type: ignore[misc]
    for worker in (0, 1) if is_back else ():
        cluster_of(driver).join(worker, 0.5)
    outcome = driver.run()
    assert (outcome.complete, outcome.reason) == (True, "reached max_iter 7")
    assert outcome.metrics == {"version": 7.0}
    [(finished, _)] = [one for one in log.done if isinstance(one[1], Finish)]
    assert finished == (0.5 if is_back else 3.0)
    assert [version for _, version, _ in kept.begun] == [7]


def test_a_run_that_is_begun_again_at_its_end_is_tested_and_its_checkpoint_stays() -> None:
    """One of scripts or with servers, which another master does not take over."""
    kept = Kept()
    driver, _ = driver_of(Plan(BATCH, 7, 2), None, 0, has_tester=True, checkpoints=kept)
    driver.coordinator.samples, driver.coordinator.version = 7 * BATCH, 7
    driver.center.version = 7  # type: ignore[misc]
    assert driver.run().metrics == {"version": 7.0}
    assert kept.begun == []
