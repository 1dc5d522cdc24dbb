"""Tests of versions come in the order of the versions, though the tester is late, or dies."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from speedo import messages
from speedo.actors.tester_actor import VersionTests
from speedo.engines.evaluation import Part, PartOfTest
from speedo.errors import EngineError

WAIT_S = 10.0


class Actor:
    """Answers as an actor does: in the order of the calls, and at once with its death once it is dead."""

    def __init__(self, *, dead: bool = False, part: Part = (({"accuracy": 1.0}, 2),)) -> None:
        self.asked: list[int] = []
        self.dead, self.part = dead, part
        self.evaluate = self

    def remote(self, version: int) -> Actor:
        self.asked.append(version)
        return self

    def future(self) -> Future[Part]:
        answer: Future[Part] = Future()
        if self.dead:
            answer.set_exception(ActorDiedError())
        else:
            answer.set_result(self.part)
        return answer


class Told:
    """What became of the tests, in the order in which it was told."""

    def __init__(self, count: int) -> None:
        self.events: list[Any] = []
        self._all = threading.Semaphore(0)
        self._count = count

    def __call__(self, event: messages.Tested | messages.Testing) -> None:
        self.events.append(event)
        self._all.release()

    def versions(self) -> list[int]:
        for _ in range(self._count):
            assert self._all.acquire(timeout=WAIT_S)
        return [event.version for event in self.events]


@pytest.mark.parametrize("order", [(0, 20, 30), (30, 0, 20), (20, 30, 0)])
def test_what_was_asked_before_there_is_a_tester_is_asked_in_order(order: tuple[int, ...]) -> None:
    ready, tester, told = threading.Event(), Actor(), Told(4)

    def new_tester(share: PartOfTest) -> Any:
        assert ready.wait(WAIT_S)
        return tester

    tests = VersionTests(new_tester, told)
    for version in order:
        tests.ask(messages.Evaluate(version, version))
    ready.set()
    tests.start()
    tests.ask(messages.Evaluate(40, 40))  # those before it may still wait
    assert told.versions() == [0, 20, 30, 40] == tester.asked


def test_what_a_dead_tester_was_asked_another_is_asked_in_order() -> None:
    first, second, told = Actor(dead=True), Actor(), Told(3)
    ready = threading.Event()
    made: list[Actor] = []

    def new_tester(share: PartOfTest) -> Any:
        if made:
            assert ready.wait(WAIT_S)
        made.append(second if made else first)
        return made[-1]

    tests = VersionTests(new_tester, told)
    tests.start()
    for version in (1, 2, 3):
        tests.ask(messages.Evaluate(version, version))
    ready.set()
    assert told.versions() == [1, 2, 3] == second.asked
    assert made == [first, second]


def test_a_tester_that_cannot_start_is_the_problem_of_every_test() -> None:
    told = Told(2)

    def new_tester(share: PartOfTest) -> Any:
        raise EngineError("no memory")

    tests = VersionTests(new_tester, told)
    for version in (1, 2):
        tests.ask(messages.Evaluate(version, version))
    assert sorted(told.versions()) == [1, 2]
    assert {event.problem for event in told.events} == {"no memory"}


def test_a_run_without_a_tester_says_so() -> None:
    told = Told(1)
    VersionTests(None, told).ask(messages.Evaluate(1, 1))
    assert told.versions() == [1]
    assert told.events[0].problem == "this run has no tester"


def test_each_test_is_shared_by_all_testers_and_told_once_whole() -> None:
    """Of 5 batches one tester has 2 and the other 3: the mean is over batches, not over testers."""
    parts: tuple[Part, ...] = ((({"accuracy": 1.0}, 2),), (({"accuracy": 2.0}, 3),))
    actors, told = [Actor(part=part) for part in parts], Told(2)

    def new_tester(share: PartOfTest) -> Any:
        assert share.count == 2
        return actors[share.index]

    tests = VersionTests(new_tester, told, testers=2)
    tests.start()
    for version in (1, 2):
        tests.ask(messages.Evaluate(version, version))
    assert told.versions() == [1, 2] == actors[0].asked == actors[1].asked
    assert [event.metrics for event in told.events] == [{"accuracy": 0.6}] * 2


def test_of_two_testers_the_dead_one_alone_repeats_its_share() -> None:
    dead, living, successor, told = Actor(dead=True), Actor(), Actor(), Told(2)
    made = {0: [living], 1: [dead, successor]}

    tests = VersionTests(lambda share: made[share.index].pop(0), told, testers=2)
    tests.start()
    for version in (1, 2):
        tests.ask(messages.Evaluate(version, version))
    assert told.versions() == [1, 2] == living.asked == successor.asked
    assert {event.problem for event in told.events} == {""}


def test_the_first_problem_of_a_share_is_that_of_the_test_and_told_once() -> None:
    told = Told(1)

    def new_tester(share: PartOfTest) -> Any:
        raise EngineError(f"no memory for {share.count}")

    VersionTests(new_tester, told, testers=3).ask(messages.Evaluate(1, 1))
    assert told.versions() == [1]
    assert [event.problem for event in told.events] == ["no memory for 3"]


def test_how_far_a_test_is_comes_of_all_its_testers_until_it_is_over() -> None:
    told, ready = Told(3), threading.Event()

    def new_tester(share: PartOfTest) -> Any:
        assert ready.wait(WAIT_S)
        return Actor()

    tests = VersionTests(new_tester, told, testers=2)
    tests.ask(messages.Evaluate(1, 1))
    tests.passed(0, 1, 3, 10)
    tests.passed(1, 1, 4, 10)
    ready.set()
    assert told.versions() == [1, 1, 1]
    tests.passed(0, 1, 5, 10)
    assert told.events[:2] == [messages.Testing(1, 3, 10), messages.Testing(1, 7, 10)]
    assert len(told.events) == 3


def test_an_output_that_is_not_finite_is_the_problem_of_the_test() -> None:
    told, part = Told(1), (({"loss": float("nan")}, 2),)
    tests = VersionTests(lambda share: Actor(part=part), told)
    tests.start()
    tests.ask(messages.Evaluate(1, 1))
    assert told.versions() == [1]
    assert "the test output loss is nan" in told.events[0].problem
