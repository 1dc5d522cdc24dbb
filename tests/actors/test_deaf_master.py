"""What fails where nobody looks becomes an event with its cause, without Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from speedo import messages
from speedo.actors.ray_cluster import RayCluster
from speedo.actors.tester_actor import VersionTests
from speedo.actors.worker_actor import WorkerReady
from speedo.actors.worker_host import WorkerHost
from speedo.actors.worker_process import WorkerProcess
from speedo.master.fetch_pacing import Pace
from speedo.messages import Evaluate, Joined, Kind, Left, Pause, StopAsked, Train, Trained
from speedo.system.runs_at import RunsAt

WAIT_S = 10.0
TRAIN = Train(0, 1, 7, 0, 0, 1, 1, Kind.DELTA)


class Reference:
    """What an actor call gives: its future."""

    def __init__(self) -> None:
        self.answer: Future[Any] = Future()

    def future(self) -> Future[Any]:
        return self.answer


def ready(near: bool = False) -> WorkerReady:
    return WorkerReady(RunsAt("here", 1, 1, "0"), 10, 5, near)


def worker(reference: Reference) -> Any:
    call = SimpleNamespace(remote=lambda *command: reference)
    return SimpleNamespace(turn=call, serve=call)


def cluster_with(reference: Reference, **options: Any) -> RayCluster:
    cluster = RayCluster(lambda worker, incarnation: None, **options)
    cluster.join(0, 1, worker(reference), ready())
    assert isinstance(cluster.next_event(WAIT_S), Joined)
    return cluster


def test_a_turn_that_is_answered_by_nonsense_costs_its_worker() -> None:
    """It ended the driver, in the thread of which the answer was looked at."""
    reference = Reference()
    cluster = cluster_with(reference)
    cluster.send(TRAIN)
    reference.answer.set_result({"not": "a result"})
    left = cluster.next_event(WAIT_S)
    assert left == Left(0, 1, "it answered a turn by {'not': 'a result'}")


def test_what_a_callback_raises_ends_the_run_with_its_cause() -> None:
    """Here the timings of a turn lack the fetch: the callback was lost in the log of Ray's thread."""
    reference = Reference()
    cluster = cluster_with(reference, pace=Pace())
    cluster.send(TRAIN)
    reference.answer.set_result(Trained(0, 1, 7, 0.5, 10, {}))
    assert isinstance(cluster.next_event(WAIT_S), Trained)
    assert cluster.next_event(WAIT_S) == StopAsked(
        "the master cannot follow its workers: KeyError: 'fetch'"
    )


def test_a_pause_comes_behind_the_results_that_servers_take_in() -> None:
    """It overtook the last one, which was late then: its records were trained once more."""
    cluster = RayCluster(lambda worker, incarnation: None)
    taken: list[Callable[[], None]] = []
    cluster.expect = lambda event, then: taken.append(then)
    trained, pauses = Trained(0, 1, 7, 0.5, 10, {}), [Pause(0, 1), Pause(0, 1, over=True)]
    for event in (trained, *pauses, Pause(1, 1)):
        cluster.answered(event)
    assert cluster.next_event(WAIT_S) == Pause(1, 1)  # another's
    assert cluster.waiting(9) == []
    taken[0]()
    assert cluster.next_event(WAIT_S) == trained
    assert cluster.waiting(9) == pauses


def test_a_worker_whose_channel_does_not_open_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It joined all the same; its turns went to an actor that waits for the channel."""
    cluster = RayCluster(lambda worker, incarnation: None, tmp_path)
    assert cluster._channels is not None
    wait_for = cluster._channels.wait_for
    monkeypatch.setattr(
        cluster._channels, "wait_for", lambda *who, gone: wait_for(*who, 0.1, gone=gone)
    )
    cluster.join(0, 1, worker(Reference()), ready(near=True))
    assert cluster.next_event(WAIT_S) == Left(0, 1, "its channel did not open within 10 s")
    assert cluster.next_event(0.1) is None


def test_a_test_whose_tester_cannot_start_for_any_reason_is_answered() -> None:
    """It was waited for until its limit, of ten minutes."""
    told: list[messages.Tested] = []
    done = threading.Event()

    def tell(tested: messages.Tested) -> None:
        told.append(tested)
        done.set()

    def fail(share: object) -> object:
        raise PermissionError("no folder for its files")

    VersionTests(fail, tell).ask(Evaluate(3, 3))
    assert done.wait(WAIT_S)
    assert told == [messages.Tested(3, {}, "no folder for its files")]


# ---------------------------------------------------------------- a host that asks for places


class SlowMaster:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.answers: list[Reference] = []
        self.given_back: list[Any] = []
        self.assign = SimpleNamespace(remote=self._assign)
        self.lost = SimpleNamespace(remote=lambda place, cause: self.given_back.append(place))

    def _assign(self, *request: Any) -> Reference:
        self.asked.append(request)
        self.answers.append(Reference())
        return self.answers[-1]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> tuple[SlowMaster, WorkerHost, list[Any]]:
    fake = SimpleNamespace(
        wait=lambda asked, timeout: ([one for one in asked if one.answer.done()], []),
        get=lambda asked: asked.answer.result(),
    )
    monkeypatch.setattr("speedo.actors.worker_host.ray", fake)
    master = SlowMaster()
    host = WorkerHost(master, SimpleNamespace(), "here", Path(), Path(), None)  # type: ignore[arg-type]
    begun: list[Any] = []
    monkeypatch.setattr(host, "_begin_at", lambda process, place, now, actor: begun.append(place))
    return master, host, begun


def test_a_host_asks_a_slow_master_once_for_each_place(
    slow: tuple[SlowMaster, WorkerHost, list[Any]],
) -> None:
    """It gave up after 20 s and asked again: each time one more slot was taken by nobody."""
    master, host, begun = slow
    process = WorkerProcess(2)
    for now in range(0, 100, 10):
        host._begin(process, float(now))
    assert master.asked == [("here", None, 1)]
    master.answers[0].answer.set_result("a place")
    host._begin(process, 100.0)
    assert begun == ["a place"]
    host._begin(process, 101.0)
    assert master.asked[1:] == [("here", None, 2)]


def test_a_place_that_comes_too_late_is_given_back(
    slow: tuple[SlowMaster, WorkerHost, list[Any]],
) -> None:
    master, host, begun = slow
    host._processes.append(WorkerProcess(2))
    host._begin(host._processes[0], 0.0)
    host._leave(host._processes, "fewer workers are wanted")
    assert master.given_back == []
    master.answers[0].answer.set_result("a place")
    assert (master.given_back, begun) == (["a place"], [])


def test_a_host_asks_again_with_the_same_request_while_the_store_has_not_answered(
    slow: tuple[SlowMaster, WorkerHost, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a place that nobody wants any more: its slot would be taken by nobody."""
    master, host, begun = slow
    monkeypatch.setattr("speedo.actors.worker_host.AGAIN_S", 0.0)
    host._processes += [WorkerProcess(2), WorkerProcess(2)]
    for process in host._processes:
        host._begin(process, 0.0)
    for answer in master.answers[:]:
        answer.answer.set_result(None)
    for process in host._processes:
        host._begin(process, 1.0)
        assert process.due > 1.0
    host._begin(host._processes[0], 2.0)
    master.answers[2].answer.set_result("a place")
    host._begin(host._processes[0], 3.0)
    assert begun == ["a place"]
    host._leave([host._processes[1]], "fewer workers are wanted")
    master.answers[3].answer.set_result(None)
    ends = time.monotonic() + WAIT_S
    while len(master.asked) < 5 and time.monotonic() < ends:
        time.sleep(0.01)
    master.answers[4].answer.set_result("another place")
    assert master.given_back == ["another place"]
    assert [request for *_, request in master.asked] == [1, 2, 1, 2, 2]
