"""Tests of versions come in the order of the versions, though the tester is late, or dies."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from speedo import messages
from speedo.actors.tester_actor import VersionTests
from speedo.errors import EngineError

WAIT_S = 10.0


class Actor:
    """Answers as an actor does: in the order of the calls, and at once with its death once it is dead."""

    def __init__(self, *, dead: bool = False) -> None:
        self.asked: list[int] = []
        self.dead = dead
        self.evaluate = self

    def remote(self, version: int) -> Actor:
        self.asked.append(version)
        return self

    def future(self) -> Future[dict[str, float]]:
        answer: Future[dict[str, float]] = Future()
        if self.dead:
            answer.set_exception(ActorDiedError())
        else:
            answer.set_result({"accuracy": 0.5})
        return answer


class Told:
    """What became of the tests, in the order in which it was told."""

    def __init__(self, count: int) -> None:
        self.events: list[messages.Tested] = []
        self._all = threading.Semaphore(0)
        self._count = count

    def __call__(self, event: messages.Tested) -> None:
        self.events.append(event)
        self._all.release()

    def versions(self) -> list[int]:
        for _ in range(self._count):
            assert self._all.acquire(timeout=WAIT_S)
        return [event.version for event in self.events]


@pytest.mark.parametrize("order", [(0, 20, 30), (30, 0, 20), (20, 30, 0)])
def test_what_was_asked_before_there_is_a_tester_is_asked_in_order(order: tuple[int, ...]) -> None:
    ready, tester, told = threading.Event(), Actor(), Told(4)

    def new_tester() -> Any:
        assert ready.wait(WAIT_S)
        return tester

    tests = VersionTests(new_tester, told)
    for version in order:
        tests.ask(messages.Evaluate(version, version))
    ready.set()
    tests.tester_in_place_of(None)
    tests.ask(messages.Evaluate(40, 40))  # those before it may still wait
    assert told.versions() == [0, 20, 30, 40] == tester.asked


def test_what_a_dead_tester_was_asked_another_is_asked_in_order() -> None:
    first, second, told = Actor(dead=True), Actor(), Told(3)
    ready = threading.Event()
    made: list[Actor] = []

    def new_tester() -> Any:
        if made:
            assert ready.wait(WAIT_S)
        made.append(second if made else first)
        return made[-1]

    tests = VersionTests(new_tester, told)
    tests.tester_in_place_of(None)
    for version in (1, 2, 3):
        tests.ask(messages.Evaluate(version, version))
    ready.set()
    assert told.versions() == [1, 2, 3] == second.asked
    assert made == [first, second]


def test_a_tester_that_cannot_start_is_the_problem_of_every_test() -> None:
    told = Told(2)

    def new_tester() -> Any:
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
