"""A worker that pauses is not waited for, whatever the mode; back again it trains from the newest center."""

from __future__ import annotations

import random

import pytest

from speedo.master.coordinator import Coordinator
from speedo.master.plan import Plan
from speedo.master.script_tests import ScriptTests
from speedo.master.turn_deadlines import TurnDeadlines, TurnsUnderWay
from speedo.messages import Evaluate, Event, Joined, Left, Pause, Train
from speedo.messages import Tested as Answer
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.rules import AddDelta
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
    assert not run.tests.claim(0, 1, 0)
    run.take(Pause(1, 1, tests=True))
    assert run.tests.version(1, 1, 0.0) == 0
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


def test_there_is_no_test_once_the_run_is_over() -> None:
    run = TestsOfScripts()
    run.tests.claim(0, 1, 0)
    run.tests.claim(1, 1, 1)
    for action in run.coordinator.end("every record of every epoch is trained"):
        run.tests.did(action, 0.0)
    run.take(Pause(0, 1, tests=True))
    assert run.tests.version(0, 1, 0.0) is None
    assert run.tests.version(1, 1, 0.0) is None
    assert not run.tests.claim(0, 1, 2)
    run.tests.ask(Evaluate(7, 70))  # nobody waits for it
    [told] = run.told
    assert isinstance(told, Answer)
    assert told.problem == "no script tests it any more"
