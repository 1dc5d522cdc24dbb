"""What a team's stretches say of how long the next ones should be."""

from __future__ import annotations

import pytest

from speedo.master.plan import Plan, rounds_of
from speedo.master.teams import Stretch, TeamUnit
from speedo.messages import Part, Trained
from speedo.sgd_modes.rules import AddDelta


def complete(team: TeamUnit, fetch_s: float) -> None:
    """A stretch of ten rounds of 0.1 s, in which the leader waits so long until the slowest member is there."""
    timings = {"fetch": fetch_s, "compute": 0.8, "team": 0.2, "publish": 0.001}
    stretch = Stretch(-1, AddDelta(), (0,), 10)
    part = Part(0, 1, 7, 40, 0, 0.5, (0.5,) * 10, None, 10)
    assert stretch.take(part, Trained(0, 1, 7, 0.5, 40, timings))
    team.complete(stretch)


def test_what_it_takes_to_begin_each_time_makes_stretches_longer() -> None:
    """A member at a tenth of the speed comes late; a stretch of 0.5 s would lose 8 % of the time to that."""
    team, plan = TeamUnit("host"), Plan(4, 10_000, 2, stretch_s=0.5)
    found = []
    for fetch_s in (0.04, 0.04, 9.0, 9.0, 0.0):
        complete(team, fetch_s)
        assert team.round_s == pytest.approx(0.1)
        found.append(rounds_of(plan, 0, 80_000, 4, *team.times(1, far=False)))
    # The first begins with connections; what happens once is not counted, and no more than 0.1 s is.
    assert found == [5, 20, 20, 50, 5]


def test_where_members_die_often_a_stretch_is_no_longer_than_pays() -> None:
    """Reports of 0.1 s: 5 s where nobody dies, and sqrt(2 x 0.1 x 10) s with a death every 10 s."""
    team, plan = TeamUnit("host"), Plan(4, 10_000, 2, stretch_s=0.5)

    def rounds() -> int:
        return rounds_of(plan, 0, 80_000, 4, *team.times(1, far=False))

    def trains(seconds: int) -> None:
        for _ in range(seconds):  # a stretch each
            complete(team, 9.0)

    trains(10)
    assert rounds() == 50
    for _ in range(8):
        team.broke()
        trains(10)
    assert rounds() == 14
    trains(990)
    assert rounds() == 50, "nobody has died for long"
