"""Many workers ask the master at once for what it does not know yet: it answers, and has threads left for others."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as all_of

import pytest

from speedo.actors.master_process import THREADS
from speedo.actors.script_questions import ScriptQuestions
from speedo.actors.store_calls import StoreCalls
from speedo.exchange.lease import LeaseRequest
from speedo.master.lease_book import LeaseBook
from speedo.master.leases import Leases
from speedo.master.meeting import Meeting
from speedo.master.script_tests import ScriptTests
from speedo.master.slots import Assignment
from speedo.messages import Evaluate, Pause
from speedo.run.script_link import AtTest, MeetScripts, Met, Question, TestLease, TestTurn, ToScript
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.users import StoreUsers

MANY = THREADS + 24
ANSWER_S = 30.0  # of a machine that has other work


def place_of(worker: int) -> Assignment:
    return Assignment(worker, 1, worker, MANY, 1)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """As many threads as the master's actor has, one of which runs the training."""
    with ThreadPoolExecutor(THREADS - 1) as threads:
        yield threads


def test_tests_of_many_scripts_at_once_leave_the_master_threads_for_others(
    pool: ThreadPoolExecutor,
) -> None:
    """Each waited in a thread of the actor until the driver had said the version, which nobody could ask then."""
    tests = ScriptTests(lambda event: None)
    meeting = Meeting(MANY, lambda worker, incarnation: None)
    questions = ScriptQuestions(Leases(LeaseBook(1), print), tests, meeting)

    def asked(question: Question) -> list[ToScript | None]:
        calls = [pool.submit(questions.answer, place_of(one), question) for one in range(MANY)]
        late = all_of(calls, ANSWER_S).not_done
        assert not late, f"{len(late)} of {MANY} questions wait in the actor: {question}"
        return [call.result() for call in calls]

    first = asked(AtTest(0, records=1000))
    assert [one for one in first if one == TestTurn(True, begins=True)] == [first[0]]
    assert asked(AtTest(0, pauses=True)) == [TestTurn(True, version=None)] * MANY
    assert all(isinstance(one, Met) for one in asked(MeetScripts(0, "here", "mean")))
    tests.saw(Pause(0, 1, tests=True), 0.0)
    tests.ask(Evaluate(7, 70))
    assert asked(AtTest(0, pauses=True)) == [TestTurn(True, version=7)] * MANY
    request = LeaseRequest(1000, shuffle=False, count=1, epoch=0, epochs=1)
    assert len(set(asked(TestLease(request)))) == MANY


@pytest.mark.redis
def test_places_for_many_workers_wait_for_redis_outside_of_the_masters_threads(
    pool: ThreadPoolExecutor,
) -> None:
    """`assign` waited for it in the actor: after 16 the command took the master for hung."""
    calls = StoreCalls()
    with PrivateRedis() as server:
        access = StoreUsers(server.url, "run:0", patience_s=ANSWER_S)
        access.admit_worker(MANY, 1)
        _ask_for_many_places(server, access, calls, pool)
        access.close()


def _ask_for_many_places(
    server: PrivateRedis, access: StoreUsers, calls: StoreCalls, pool: ThreadPoolExecutor
) -> None:

    def assign(worker: int) -> str | None:
        return calls.ask((worker, 1), lambda: access.admit_worker(worker, 1))

    os.kill(server.process_id, signal.SIGSTOP)
    try:
        asked = [pool.submit(assign, worker) for worker in range(MANY)]
        calls.later(lambda: access.dismiss(MANY, 1))
        done, late = all_of(asked, ANSWER_S / 3)
        assert not late
        assert {call.result() for call in done} == {None}
    finally:
        os.kill(server.process_id, signal.SIGCONT)
    again, there = threading.Event(), dict[int, str]()
    for _ in range(int(ANSWER_S / 0.05)):
        for worker in range(MANY):
            if worker not in there and (url := assign(worker)) is not None:
                there[worker] = url
        if len(there) == MANY:
            break
        again.wait(0.05)
    assert len(set(there.values())) == MANY
