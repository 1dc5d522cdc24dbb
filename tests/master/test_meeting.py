"""Who takes part in a run's collectives."""

from __future__ import annotations

import pytest

from speedo.errors import ConfigError, TeamBrokenError
from speedo.master.meeting import Meeting


def test_workers_meet_once_all_have_come_and_one_that_died_before_is_replaced() -> None:
    gone: dict[tuple[int, int], str] = {}
    meeting = Meeting(3, lambda *who: gone.get(who))
    assert meeting.meet(0, 1, "a") == ()
    assert meeting.meet(1, 1, "b") == ()
    gone[1, 1] = "it was killed"
    assert meeting.meet(2, 1, "a") == ()
    assert meeting.meet(1, 2, "a") == ("a", "a", "a")
    assert meeting.meet(0, 1, "a") == ("a", "a", "a")


def test_once_they_have_met_nobody_may_be_missing_and_nobody_comes_anew() -> None:
    gone: dict[tuple[int, int], str] = {}
    meeting = Meeting(2, lambda *who: gone.get(who))
    meeting.meet(0, 1, "a")
    assert meeting.meet(1, 1, "b") == ("a", "b")
    gone[1, 1] = "it was killed"
    with pytest.raises(TeamBrokenError, match="worker 1 is gone: it was killed"):
        meeting.meet(0, 1, "a")
    with pytest.raises(TeamBrokenError, match="worker 1 was started again"):
        meeting.meet(1, 2, "b")


def test_who_is_missing_of_a_team_is_told_in_a_sentence() -> None:
    gone = {(1, 1): "it was killed"}
    meeting = Meeting(2, lambda *who: gone.get(who))
    assert meeting.missing(((0, 1), (1, 2))) == ""
    assert meeting.missing(((0, 1), (1, 1))) == "worker 1 is gone: it was killed"


def test_a_worker_beyond_those_wanted_takes_no_part() -> None:
    with pytest.raises(ConfigError, match="in addition to the 2"):
        Meeting(2, lambda *who: None).meet(2, 1, "a")
