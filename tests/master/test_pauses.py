"""A worker that pauses is not waited for, whatever the mode; back again it trains from the newest center."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from speedo.errors import ConfigError
from speedo.exchange.lease import Lease, LeaseRequest, NoLease
from speedo.master.coordinator import Coordinator
from speedo.master.plan import Plan
from speedo.master.reasons import ALL_DONE
from speedo.master.script_tests import NONE, ScriptTests
from speedo.master.turn_deadlines import TurnDeadlines, TurnsUnderWay
from speedo.messages import (
    Action,
    Drop,
    Evaluate,
    Event,
    Finish,
    Joined,
    Left,
    Merge,
    Pause,
    SetAside,
    Train,
    Trained,
)
from speedo.messages import Tested as Answer
from speedo.run_dir.events import SCRIPT_ENDED
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.rules import AddDelta, AverageDeltas
from speedo.sgd_modes.synchronous import Synchronous
from tests.master.test_joining import Crew, strategies
from tests.support.receiving import handle


class PausingCrew(Crew):
    """Who pauses must have a turn, which is given back: so a script does it."""

    def pause(self, worker: int) -> None:
        turn = self.owes.pop(worker)
        self._take(Pause(worker, turn.incarnation))

    def resume(self, worker: int) -> None:
        member = self.coordinator.members[worker]
        self._take(Pause(worker, member.incarnation, over=True))

    def _take(self, event: Pause) -> None:
        for action in handle(self.coordinator, event):
            if isinstance(action, Train):
                assert action.version == self.coordinator.version
                self.owes[action.worker] = action

    @property
    def pausing(self) -> list[int]:
        return [worker for worker, one in self.coordinator.members.items() if one.pauses]


@pytest.mark.parametrize("mode", strategies())
def test_the_others_train_on_and_who_comes_back_trains_with_them(mode: str) -> None:
    crew = PausingCrew(strategies()[mode], workers=3)
    for worker in range(3):
        crew.join(worker)
    crew.pause(1)
    for _ in range(3):
        before = crew.coordinator.samples
        crew.finish(*[worker for worker in (0, 2) if worker in crew.owes])
        assert crew.coordinator.samples > before
        assert 1 not in crew.owes
    crew.resume(1)
    crew.finish(*[worker for worker in (0, 2) if worker in crew.owes])  # the round under way
    assert crew.owes[1].moving_rate is None
    before = crew.coordinator.samples
    crew.finish(*sorted(crew.owes))
    assert crew.coordinator.samples > before


@pytest.mark.parametrize("mode", strategies())
@pytest.mark.parametrize("seed", range(20))
def test_someone_trains_as_long_as_one_does_not_pause(mode: str, seed: int) -> None:
    """In random orders of pauses, deaths, joins and results; each result merges once at most."""
    chance = random.Random(f"{mode} {seed}")
    crew = PausingCrew(strategies()[mode], workers=3)
    for worker in range(3):
        crew.join(worker)
    for _ in range(200):
        members = crew.coordinator.members
        what = chance.random()
        if what < 0.2 and crew.owes:
            crew.pause(chance.choice(sorted(crew.owes)))
        elif what < 0.4 and crew.pausing:
            crew.resume(chance.choice(crew.pausing))
        elif what < 0.45 and len(members) > 1:
            crew.leave(chance.choice(sorted(members)))
        elif what < 0.5 and len(members) < 4:
            crew.join(next(slot for slot in range(4) if slot not in members))
        elif crew.owes:
            crew.finish(chance.choice(sorted(crew.owes)))
        assert crew.owes or len(crew.pausing) == len(members)
        assert not set(crew.owes) & set(crew.pausing)
    while crew.pausing:
        crew.resume(crew.pausing[0])
    for _ in range(3):
        crew.finish(*sorted(crew.owes))
    before = crew.coordinator.samples
    crew.finish(*sorted(crew.owes))
    assert crew.coordinator.samples > before


def test_who_pauses_and_is_not_heard_of_again_is_overdue() -> None:
    turns = TurnsUnderWay(lambda worker, ticket: True, TurnDeadlines(lambda *_: True, 100.0))
    turns.heard(Pause(1, 3), 5.0)
    turns.heard(Pause(2, 1), 5.0)
    turns.heard(Pause(3, 1), 5.0)
    turns.heard(Pause(2, 1), 50.0)  # it says so again
    turns.heard(Pause(3, 1, over=True), 60.0)
    assert turns.soonest() == 105.0
    assert turns.overdue(104.0) == []
    [(worker, incarnation, cause)] = turns.overdue(105.0)
    assert (worker, incarnation) == (1, 3)
    assert "made no step and tested for 100 s, the --timeout" in cause
    turns.heard(Left(2, 1, "killed"), 110.0)
    assert turns.soonest() == float("inf")


class TestsOfScripts:
    """`ScriptTests` between a coordinator and its workers, as the driver has it."""

    __test__ = False

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.tests = ScriptTests(self.told.append)
        self.coordinator = Coordinator(Asynchronous(AddDelta()), Plan(10, 1000, workers=2))
        for worker in (0, 1):
            self.take(Joined(worker, 1, 10))

    def take(self, event: Event) -> None:
        self.tests.saw(event, 0.0)
        for action in handle(self.coordinator, event):
            if isinstance(action, Evaluate):
                self.tests.ask(action)
            self.tests.did(action, 0.0)


def test_the_first_that_comes_to_a_test_makes_it() -> None:
    run = TestsOfScripts()
    assert run.tests.claim(1, 1, 0)
    assert run.tests.claim(0, 1, 0) is None
    run.take(Pause(1, 1, tests=True))
    assert run.tests.version(1, 1) == 0
    answer = Answer(0, {"accuracy": 0.5})
    run.tests.tested(1, 1, answer)
    assert run.told == [answer]
    assert not run.tests.claim(0, 1, 0)
    assert run.tests.claim(0, 1, 1)


def test_who_dies_in_a_test_gives_its_point_back() -> None:
    run = TestsOfScripts()
    run.tests.claim(1, 1, 0)
    run.take(Pause(1, 1, tests=True))
    run.take(Left(1, 1, "killed"))
    [told] = run.told
    assert isinstance(told, Answer)
    assert told.problem == "worker 1, which made it, is gone: killed"
    run.tests.tested(1, 1, Answer(0, {"accuracy": 0.5}))  # its last word
    assert len(run.told) == 1
    assert not run.tests.claim(1, 1, 0)
    assert run.tests.claim(0, 1, 0)


def test_who_is_set_aside_in_a_test_gives_its_point_back() -> None:
    """Nothing else says that it is gone: its end comes when it is in the run no more."""
    run = TestsOfScripts()
    run.tests.claim(1, 1, 0)
    run.take(Pause(1, 1, tests=True))
    run.tests.did(SetAside(1, 1, "three results were refused"), 0.0)
    [told] = run.told
    assert isinstance(told, Answer)
    assert told.problem == "worker 1, which made it, is gone: three results were refused"
    assert run.tests.claim(0, 1, 0)


def test_there_is_no_test_once_the_run_is_over() -> None:
    run = TestsOfScripts()
    run.tests.claim(0, 1, 0)
    run.tests.claim(1, 1, 1)
    for action in run.coordinator.end("every record of every epoch is trained"):
        run.tests.did(action, 0.0)
    run.take(Pause(0, 1, tests=True))
    assert run.tests.version(0, 1) == NONE
    assert run.tests.version(1, 1) == NONE
    assert not run.tests.claim(0, 1, 2)
    run.tests.ask(Evaluate(7, 70))  # nobody waits for it
    [told] = run.told
    assert isinstance(told, Answer)
    assert told.problem == "no script tests it any more"


class TeamOfScripts:
    """Workers that a coordinator has in a team, whose turns are of several rounds."""

    def __init__(self, workers: int) -> None:
        plan = Plan(4 * workers, 1000, workers, teams=True, stretch_s=1.0, own_counts=True)
        self.coordinator = Coordinator(Synchronous(AverageDeltas()), plan)
        self.owes: dict[int, Train] = {}
        self.actions: list[Action] = []
        for worker in range(workers):
            self.take(Joined(worker, 1, 4, meets="here"))

    def take(self, event: Event) -> list[Action]:
        found = handle(self.coordinator, event)
        self.owes |= {one.worker: one for one in found if isinstance(one, Train)}
        self.actions += found
        return found

    def finish(self, worker: int, steps: int, *, pauses: bool = False) -> list[Action]:
        turn = self.owes.pop(worker)
        trained = Trained(worker, 1, turn.ticket, 0.5, 4 * steps, {"compute": 0.01 * steps})
        return self.take(replace(trained, pauses=pauses))

    def of(self, kind: type) -> list[Action]:
        return [one for one in self.actions if isinstance(one, kind)]


def test_a_step_of_a_script_with_fewer_records_counts_as_a_step() -> None:
    """The last batch of its records: 1 of 4, after a whole one."""
    coordinator = Coordinator(
        Asynchronous(AddDelta(), local_steps=2), Plan(4, 1000, 1, own_counts=True)
    )
    [turn] = [one for one in handle(coordinator, Joined(0, 1, 4)) if isinstance(one, Train)]
    merged = handle(coordinator, Trained(0, 1, turn.ticket, 0.5, 5, {}))
    [merge] = [one for one in merged if isinstance(one, Merge)]
    assert [(part.samples, part.steps) for part in merge.parts] == [(5, 2)]


@pytest.mark.parametrize("leaves", [0, 1])
def test_a_member_that_pauses_ends_the_turn_of_its_team_and_nothing_is_lost(leaves: int) -> None:
    team = TeamOfScripts(2)
    for worker in (0, 1):
        team.finish(worker, 1)
    assert team.owes[0].team is not None
    assert team.owes[0].team.rounds > 3
    before = team.coordinator.samples
    assert team.finish(leaves, 3, pauses=True) == []
    assert team.take(Pause(leaves, 1, tests=True)) == []  # what the others still owe is tested, too
    team.finish(1 - leaves, 3)
    assert team.coordinator.samples == before + 2 * 3 * 4
    assert team.of(Evaluate) == [Evaluate(2, team.coordinator.iteration)]
    assert set(team.owes) == {1 - leaves}  # alone
    assert team.owes[1 - leaves].team is None
    team.take(Pause(leaves, 1, over=True))
    team.finish(1 - leaves, 1)
    assert set(team.owes) == {0, 1}
    assert team.of(Drop) == []


@pytest.mark.parametrize("leaves", [0, 1])
def test_what_a_member_trained_counts_though_it_leaves_before_the_others_have_answered(
    leaves: int,
) -> None:
    """One that dies then takes the turn with it."""
    team = TeamOfScripts(2)
    for worker in (0, 1):
        team.finish(worker, 1)
    before, stays = team.coordinator.samples, 1 - leaves
    team.finish(leaves, 3, pauses=True)
    assert team.take(Left(leaves, 1, SCRIPT_ENDED, done=True)) == []
    team.finish(stays, 3)
    assert team.coordinator.samples == before + 2 * 3 * 4
    assert set(team.coordinator.members) == set(team.owes) == {stays}
    assert team.of(Drop) == []
    team.take(Left(stays, 1, SCRIPT_ENDED, done=True))
    assert team.of(Finish) == [Finish(True, ALL_DONE)]


def test_who_has_left_is_gone_also_if_the_turn_of_its_team_is_void() -> None:
    team = TeamOfScripts(3)
    team.finish(1, 2, pauses=True)
    team.take(Left(1, 1, SCRIPT_ENDED, done=True))
    team.take(Left(2, 1, "killed"))
    assert set(team.coordinator.members) == {0}
    assert team.of(Merge) == []
    assert {one.worker for one in team.of(Drop) if isinstance(one, Drop)} == {1}


def test_all_members_may_pause_at_once() -> None:
    team = TeamOfScripts(2)
    for worker in (0, 1):
        team.finish(worker, 2, pauses=True)
        team.take(Pause(worker, 1, tests=worker == 0))
    assert (team.owes, team.coordinator.version) == ({}, 1)
    assert len(team.of(Evaluate)) == 1
    for worker in (1, 0):
        team.take(Pause(worker, 1, over=True))
    team.finish(1, 1)
    assert set(team.owes) == {0, 1}
    assert team.of(Drop) == []


def test_a_member_that_dies_while_one_tests_breaks_the_turn_and_the_test_is_made() -> None:
    team = TeamOfScripts(3)
    team.finish(1, 2, pauses=True)
    team.take(Pause(1, 1, tests=True))
    found = team.take(Left(2, 1, "killed"))
    assert [one for one in found if isinstance(one, Evaluate)] == [Evaluate(0, 0)]
    assert team.of(Merge) == []


def test_rounds_that_were_not_made_do_not_shorten_what_a_round_takes() -> None:
    team = TeamOfScripts(2)
    for worker in (0, 1):
        team.finish(worker, 1)
    rounds = team.owes[0].team.rounds if team.owes[0].team else 0
    for worker in (0, 1):
        team.finish(worker, 2)  # one of the two had it end
    assert team.owes[0].team is not None
    assert team.owes[0].team.rounds == rounds


ASKS = LeaseRequest(10, shuffle=False, count=4, epoch=0, epochs=1)


def shared_test() -> TestsOfScripts:
    """Both workers take part in test 0, of ten records."""
    run = TestsOfScripts()
    assert run.tests.claim(1, 1, 0, 10) is True
    run.take(Pause(1, 1, tests=True))
    assert run.tests.claim(0, 1, 0, 10) is False
    assert [run.tests.version(worker, 1) for worker in (0, 1)] == [0, 0]
    return run


def test_a_test_that_workers_share_has_the_means_over_all_records() -> None:
    run = shared_test()
    leases = [run.tests.lease(worker, 1, ASKS) for worker in (1, 0, 1, 0)]
    assert leases == [Lease(0, 0, 4), Lease(0, 4, 8), Lease(0, 8, 10), NoLease.OVER]
    assert run.tests.claim(0, 1, 0, 10) is None  # no more comes to it
    assert run.tests.part(0, 1, {"accuracy": 1.0}, ((0, 4, 8),)) is False
    found = run.tests.part(1, 1, {"accuracy": 0.5}, ((0, 0, 4), (0, 8, 10)))
    assert isinstance(found, Answer)
    assert found.metrics == {"accuracy": pytest.approx(0.7)}
    assert run.told == [found]
    assert run.tests.part(0, 1, {}, ()) == found


def test_what_a_worker_that_dies_has_not_tested_is_tested_by_the_others() -> None:
    run = shared_test()
    assert run.tests.lease(1, 1, ASKS) == Lease(0, 0, 4)
    assert run.tests.part(1, 1, {"accuracy": 1.0}, ((0, 0, 4),)) is True
    assert run.tests.lease(1, 1, ASKS) == Lease(0, 4, 8)
    assert run.tests.lease(0, 1, ASKS) == Lease(0, 8, 10)
    assert run.tests.part(0, 1, {"accuracy": 1.0}, ((0, 8, 10),)) is False
    run.take(Left(1, 1, "killed"))
    assert run.tests.part(0, 1, {}, ()) is True
    assert run.tests.lease(0, 1, ASKS) == Lease(0, 4, 8)
    found = run.tests.part(0, 1, {"accuracy": 0.0}, ((0, 4, 8),))
    assert isinstance(found, Answer)
    assert found.metrics == {"accuracy": pytest.approx(0.6)}


def test_a_shared_test_of_which_all_workers_die_begins_again() -> None:
    run = shared_test()
    for worker in (0, 1):
        run.take(Left(worker, 1, "killed"))
    assert [one.problem for one in run.told if isinstance(one, Answer)] == [
        "worker 1, which made it, is gone: killed"
    ]
    assert run.tests.claim(0, 2, 0, 10) is True


def test_data_sets_and_numbers_of_workers_must_be_the_same() -> None:
    run = shared_test()
    with pytest.raises(ConfigError, match=r"give run\.test the same data set on every worker"):
        run.tests.claim(0, 1, 0, 11)
    run.tests.lease(0, 1, ASKS)
    run.tests.lease(1, 1, ASKS)
    run.tests.part(0, 1, {"accuracy": 1.0}, ((0, 0, 4),))
    with pytest.raises(ConfigError, match="worker 1 returned loss, another one accuracy"):
        run.tests.part(1, 1, {"loss": 1.0}, ((0, 4, 8),))
