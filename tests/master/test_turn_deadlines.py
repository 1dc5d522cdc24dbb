"""How long a turn may take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from speedo.master.turn_deadlines import (
    FEWEST_TURNS,
    HEARTBEAT_S,
    TurnDeadlines,
    TurnsUnderWay,
    TurnUnderWay,
)
from speedo.messages import Kind, Team, Train

FIRST_S = 100.0


def turn(worker: int, ticket: int, steps: int = 1) -> Train:
    return Train(worker, 1, ticket, 0, 0, steps, 1, Kind.DELTA)


@pytest.fixture
def deadlines() -> TurnDeadlines:
    return TurnDeadlines(lambda worker, ticket: True, FIRST_S)


def known(deadlines: TurnDeadlines, seconds: float = 2.0) -> None:
    """Enough turns of this length to go by."""
    for _ in range(FEWEST_TURNS):
        deadlines.measure(TurnUnderWay(turn(9, 0), 0.0), seconds)


def test_a_turn_of_more_steps_than_those_measured_has_its_steps_times_as_long(
    deadlines: TurnDeadlines,
) -> None:
    for _ in range(FEWEST_TURNS):
        deadlines.measure(TurnUnderWay(turn(9, 0, steps=4), 1.0), 9.0)  # 2 s a step
    limits = [deadlines.limit(steps) for steps in (1, 4, 5, 40)]
    assert limits == [
        24.0 + HEARTBEAT_S,
        24.0 + HEARTBEAT_S,
        30.0 + HEARTBEAT_S,
        240.0 + HEARTBEAT_S,
    ]


def test_no_turn_has_less_than_the_least_and_a_teams_has_twice_that() -> None:
    deadlines = TurnDeadlines(lambda worker, ticket: True, FIRST_S, least_s=50.0)
    known(deadlines, 0.5)
    alone, together = turn(1, 1), replace(turn(2, 2), team=Team(1, ((2, 1, 4), (3, 1, 4))))
    assert deadlines.limit_of(alone) == 50.0
    assert deadlines.limit_of(together) == 100.0
    deadlines.add(alone, 1000.0)
    assert deadlines.soonest() == 1050.0
    deadlines.hurry(alone, 900.0)
    assert deadlines.soonest() == 950.0
    known(deadlines, 100.0)
    assert TurnDeadlines(lambda *_: True, 5.0, least_s=50.0).limit_of(alone) == 50.0


def test_the_slow_turns_are_those_of_the_95th_percentile_found_anew_every_sixteen_turns(
    deadlines: TurnDeadlines,
) -> None:
    """Of 112 turns of 1, 2, 3 ... seconds it is the 107th; of 128 with 16 of 1,000 s more, one of those."""
    for seconds in range(1, 113):
        deadlines.measure(TurnUnderWay(turn(9, 0), 0.0), float(seconds))
    assert deadlines.limit(1) == 3 * 107.0 + HEARTBEAT_S
    for _ in range(15):
        deadlines.measure(TurnUnderWay(turn(9, 0), 0.0), 1000.0)
    assert deadlines.limit(1) == 3 * 107.0 + HEARTBEAT_S
    deadlines.measure(TurnUnderWay(turn(9, 0), 0.0), 1000.0)
    assert deadlines.limit(1) == 3 * 1000.0 + HEARTBEAT_S


def test_the_turns_that_are_owed_with_their_ages_and_what_is_left(deadlines: TurnDeadlines) -> None:
    turns = TurnsUnderWay(lambda worker, ticket: True, deadlines)
    first, ahead, other = turn(0, 1), turn(0, 2), turn(1, 3)
    for command, at in ((first, 5.0), (ahead, 6.0), (other, 9.0)):
        turns.issue(command, at)
    assert turns.owed(15.0) == [(first, 10.0, FIRST_S - 10.0), (other, 6.0, FIRST_S - 6.0)]


def test_the_first_turns_have_the_users_timeout(deadlines: TurnDeadlines) -> None:
    deadlines.add(turn(0, 1), 5.0)
    assert deadlines.soonest() == 5.0 + FIRST_S
    assert deadlines.overdue(104.9) == []
    assert deadlines.overdue(105.0) == [(0, 1)]


def test_later_turns_have_three_times_what_turns_take_and_the_heartbeat(
    deadlines: TurnDeadlines,
) -> None:
    known(deadlines)
    deadlines.add(turn(0, 1), 0.0)
    assert deadlines.soonest() == 3 * 2.0 + HEARTBEAT_S
    deadlines.add(turn(1, 2, steps=10), 0.0)
    assert deadlines.limit(10) == 3 * 20.0 + HEARTBEAT_S


def test_a_slot_that_was_overdue_gets_twice_the_time_until_a_turn_of_its_own_ends(
    deadlines: TurnDeadlines,
) -> None:
    """A way to the store that became slow makes every turn longer than those that were measured."""
    known(deadlines)
    limit, now = 3 * 2.0 + HEARTBEAT_S, 0.0
    for factor in (1, 2, 4, 4):
        deadlines.add(turn(0, 1), now)
        assert deadlines.soonest() == now + factor * limit
        now += factor * limit
        assert deadlines.overdue(now) == [(0, 1)]
    deadlines.add(turn(1, 2), now)
    assert deadlines.soonest() == now + limit, "another slot pays for it"
    deadlines.measure(TurnUnderWay(turn(0, 3), now), now + 2.0)
    deadlines.add(turn(0, 4), now)
    assert deadlines.soonest() == now + limit


def test_a_turn_that_has_ended_is_not_overdue() -> None:
    outstanding = {1: True}
    deadlines = TurnDeadlines(lambda worker, ticket: outstanding.get(ticket, False), FIRST_S)
    deadlines.add(turn(0, 1), 0.0)
    outstanding.clear()
    assert deadlines.soonest() == float("inf")
    assert deadlines.overdue(1e9) == []


def test_turns_that_lost_time_to_others_begin_anew(deadlines: TurnDeadlines) -> None:
    one = TurnUnderWay(turn(0, 1), 0.0)
    deadlines.add(one.command, 0.0)
    deadlines.grant([one], 50.0)
    assert deadlines.soonest() == 50.0 + FIRST_S


def test_a_turn_that_builds_an_engine_for_another_share_has_longer_and_is_not_measured(
    deadlines: TurnDeadlines,
) -> None:
    known(deadlines)
    usual, builds = deadlines.limit(1), replace(turn(0, 1), division=1)
    assert deadlines.limit_of(builds) == usual + FIRST_S
    deadlines.measure(TurnUnderWay(builds, 0.0), 90.0)
    assert deadlines.limit_of(replace(turn(0, 2), division=1)) == usual
    assert deadlines.limit_of(replace(turn(1, 3), division=1)) == usual + FIRST_S
