"""Who takes part in a run's collectives."""

from __future__ import annotations

import pytest

from speedo.errors import TeamBrokenError
from speedo.master.meeting import Group, Meeting


class Workers:
    """They come to a meeting for the same call; `gone` are those that have left the run."""

    def __init__(self, size: int) -> None:
        self.gone: dict[tuple[int, int], str] = {}
        self.meeting = Meeting(size, lambda *who: self.gone.get(who))

    def come(
        self, worker: int, incarnation: int = 1, call: str = "barrier", after: int = 0
    ) -> Group | None:
        return self.meeting.meet(worker, incarnation, f"host {worker % 2}", call, after)


def members(group: Group | None) -> list[int]:
    assert group is not None
    return [worker for worker, _ in group.members]


def test_workers_meet_once_all_have_come_and_one_that_died_before_is_replaced() -> None:
    workers = Workers(3)
    assert workers.come(0) is None
    assert workers.come(1) is None
    workers.gone[1, 1] = "it was killed"
    assert workers.come(2) is None
    found = workers.come(1, 2)
    assert found == Group(1, ((0, "host 0"), (1, "host 1"), (2, "host 0")))
    assert [workers.come(worker) for worker in (0, 2)] == [found] * 2


def test_without_one_that_has_died_the_others_form_a_new_group_and_it_joins_them_later() -> None:
    workers = Workers(3)
    for worker in (0, 1, 2):
        workers.come(worker)
    assert not workers.meeting.look(1)
    workers.gone[1, 1] = "it was killed"
    with pytest.raises(TeamBrokenError, match="worker 1 is gone: it was killed"):
        workers.meeting.look(1)
    assert workers.come(2, after=1) is None
    assert members(workers.come(0, after=1)) == [0, 2]
    assert workers.come(1, 2) is None  # started again
    assert workers.meeting.look(2)
    assert workers.come(0, after=2) is None
    assert members(workers.come(2, after=2)) == [0, 1, 2]
    assert members(workers.come(1, 2)) == [0, 1, 2]
    assert not workers.meeting.look(3)


def test_a_worker_beyond_those_wanted_takes_part_from_a_call_that_the_others_make_too() -> None:
    workers = Workers(2)
    workers.come(0)
    workers.come(1)
    assert workers.come(7, call="all_gather") is None
    workers.come(0, after=1)
    assert members(workers.come(1, after=1)) == [0, 1]
    assert workers.come(7, call="all_gather") is None
    workers.come(0, after=2, call="all_gather")
    assert members(workers.come(1, after=2, call="all_gather")) == [0, 1, 7]


def test_those_that_stay_are_waited_for_and_not_those_that_have_ended() -> None:
    workers = Workers(2)
    workers.come(0)
    workers.come(1)
    assert workers.come(2) is None
    workers.gone[1, 1] = "its script has ended"
    assert workers.come(2) is None
    workers.gone[0, 1] = "its script has ended"
    assert members(workers.come(2)) == [2]
    with pytest.raises(TeamBrokenError, match="have left the collective"):
        workers.meeting.look(1)


def test_under_another_master_a_group_stays_until_somebody_waits_and_the_next_has_a_higher_number() -> (
    None
):
    workers = Workers(2)
    assert not workers.meeting.look(5)
    assert workers.come(0) is None  # started again
    assert workers.meeting.look(5)
    found = workers.come(1, after=5)
    assert found is not None
    assert found.number == 6
    assert workers.come(0) == found


def test_who_is_missing_of_a_team_is_told_in_a_sentence() -> None:
    workers = Workers(2)
    workers.gone[1, 1] = "it was killed"
    assert workers.meeting.missing(((0, 1), (1, 2))) == ""
    assert workers.meeting.missing(((0, 1), (1, 1))) == "worker 1 is gone: it was killed"
