"""Requests to a server: those that wait travel in one call, in their order, and each has its own answer or loss."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from speedo.actors.servers.server_calls import MOST_CALLS, ServerCalls, ServerLost
from speedo.errors import StoreError
from speedo.master.servers.server_requests import Clear, Probe, Request

pytestmark = pytest.mark.ray
WAIT_S = 60.0


class Slow:
    """Takes 0.2 s for a call; answers with how many of its requests have come, and fails at `Clear`."""

    def __init__(self) -> None:
        self.done = 0

    def do_all(self, requests: Sequence[Request]) -> list[Any]:
        time.sleep(0.2)
        found: list[Any] = []
        for request in requests:
            self.done += 1
            found.append(StoreError("full") if isinstance(request, Clear) else self.done)
        return found

    def process(self) -> int:
        return os.getpid()


@pytest.fixture(scope="module")
def ray_here() -> Iterator[Any]:
    import ray

    # This process may have imported Ray with any settings: an actor is all that is needed.
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        yield ray
    finally:
        ray.shutdown()


@pytest.fixture
def calls(ray_here: Any) -> Iterator[ServerCalls]:
    actor = ray_here.remote(Slow).options(num_cpus=0).remote()
    ray_here.get(actor.process.remote())
    yield ServerCalls(actor)
    ray_here.kill(actor)


def test_what_waits_while_calls_are_under_way_goes_in_one(calls: ServerCalls) -> None:
    asked = [calls.ask(Probe()) for _ in range(20)]
    assert calls.calls == MOST_CALLS
    assert [one.result(WAIT_S) for one in asked] == list(range(1, 21))
    assert calls.calls == MOST_CALLS + 1


def test_what_comes_together_goes_in_one(calls: ServerCalls) -> None:
    calls.hold()
    asked = [calls.ask(Probe()) for _ in range(5)]
    assert calls.calls == 0
    calls.let_go()
    assert calls.calls == 1
    assert [one.result(WAIT_S) for one in asked] == [1, 2, 3, 4, 5]


def test_an_error_is_the_answer_to_its_own_request(calls: ServerCalls) -> None:
    calls.hold()
    first, second, third = (calls.ask(one) for one in (Probe(), Clear(), Probe()))
    calls.let_go()
    assert isinstance(second.result(WAIT_S), StoreError)
    assert (first.result(WAIT_S), third.result(WAIT_S)) == (1, 3)


def test_with_the_process_all_is_lost_that_was_asked_and_what_follows(
    calls: ServerCalls, ray_here: Any
) -> None:
    process = ray_here.get(calls.handle.process.remote())
    asked = [calls.ask(Probe()) for _ in range(4)]
    os.kill(process, signal.SIGKILL)
    assert all(isinstance(one.result(WAIT_S), ServerLost) for one in asked)
    assert isinstance(calls.ask(Probe()).result(WAIT_S), ServerLost)


def test_many_threads_get_their_own_answers(calls: ServerCalls) -> None:
    found: list[Any] = []

    def ask() -> None:
        found.extend(calls.ask(Probe()).result(WAIT_S) for _ in range(3))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, 25))
