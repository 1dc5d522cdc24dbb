"""How many records are in results that were not merged."""

from __future__ import annotations

import pytest

from speedo.master.lost_records import LostRecords
from speedo.messages import Drop, Finish, Joined, Kind, Left, Merge, Part, Train, Trained


@pytest.fixture
def lost() -> LostRecords:
    """Two workers with batches of 4, and two turns of the first, one of the second."""
    lost = LostRecords()
    for worker in (0, 1):
        lost.saw(Joined(worker, 1, 4), 0.0)
    for ticket, worker, steps in ((1, 0, 1), (2, 0, 2), (3, 1, 3)):
        lost.with_records(Train(worker, 1, ticket, 0, 0, steps, 4, Kind.DELTA))
    return lost


def left_out(lost: LostRecords) -> int:
    finish = lost.with_records(Finish(complete=True, reason=""))
    assert isinstance(finish, Finish)
    return finish.left_out


def drop(lost: LostRecords, worker: int, ticket: int, decision: str) -> None:
    lost.with_records(Drop(worker, 1, ticket, decision, "", 0, 0.5))


def test_what_is_merged_is_not_lost_also_if_its_worker_has_left(lost: LostRecords) -> None:
    lost.saw(Trained(1, 1, 3, 0.5, 12), 0.0)
    lost.saw(Left(1, 1, "killed"), 0.0)
    lost.with_records(Merge(1, 1, 12, 1.0, (Part(1, 1, 3, 12, 0, 0.5),)))
    assert left_out(lost) == 0


def test_a_dead_worker_loses_the_turns_that_it_was_in(lost: LostRecords) -> None:
    lost.saw(Left(0, 1, "killed"), 0.0)
    drop(lost, 0, 1, "late")
    assert left_out(lost) == 12


def test_of_a_team_that_a_death_has_ended_only_what_comes_after_the_whole_rounds_is_lost(
    lost: LostRecords,
) -> None:
    """Worker 0 dies in the second step of its turn of two, worker 1 has read that of its own, of three."""
    lost.saw(Left(0, 1, "killed"), 0.0)
    lost.saw(Trained(1, 1, 3, 0.5, 4, broken="worker 0 has left the team"), 0.0)
    parts = Part(0, 1, 2, 4, 0, 0.5), Part(1, 1, 3, 4, 0, 0.5)
    lost.with_records(Merge(1, 1, 8, 1.0, parts))
    assert left_out(lost) == 4 + 4 + 4  # and the turn that worker 0 had besides


def test_what_is_discarded_is_lost(lost: LostRecords) -> None:
    lost.saw(Trained(1, 1, 3, 0.5, 12), 0.0)
    drop(lost, 1, 3, "discarded")
    assert left_out(lost) == 12


def test_a_turn_given_ahead_of_one_that_is_refused_is_lost_with_it(lost: LostRecords) -> None:
    drop(lost, 0, 1, "refused")
    assert left_out(lost) == 12
