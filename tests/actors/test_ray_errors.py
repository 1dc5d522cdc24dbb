"""Every error of Ray has a meaning, and ends nothing that could go on, wherever it is heard."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from ray.exceptions import RayError

from speedo.actors import host_manager, launch, ray_cluster, worker_host, worker_process
from speedo.actors.fleet import fleet as fleet_module
from speedo.actors.fleet import seats
from speedo.actors.fleet.fleet import Fleet
from speedo.actors.fleet.keeper import News
from speedo.actors.host_manager import HostManager, Orders
from speedo.actors.join.host_link import RESOURCE
from speedo.actors.ray_cluster import RayCluster
from speedo.actors.ray_errors import meaning_of, raised_by, why
from speedo.actors.servers.server_calls import ServerCalls, ServerLost
from speedo.actors.tester_actor import PartTested, ShareTests
from speedo.actors.worker_actor import WorkerReady
from speedo.actors.worker_host import WorkerHost
from speedo.engines.solver.holding import Holding
from speedo.errors import EngineError, Meaning, SpeedoError
from speedo.master.servers.server_requests import Probe
from speedo.master.slots import Assignment
from speedo.messages import Evaluate, Left, Refused
from speedo.run.config.run_config import make_config
from tests.support.commands import wait_until
from tests.support.network import ROOT
from tests.support.ray_cluster import oldest_ray
from tests.support.ray_errors import Reference, Stub, StubRay, errors_of_ray

AGAIN: Final = {
    "ActorUnavailableError", "GetTimeoutError", "ObjectFetchTimedOutError", "ObjectStoreFullError", "OutOfDiskError",
    "PendingCallsLimitExceeded", "PlasmaObjectNotAvailable", "RayChannelTimeoutError", "RpcError",
    "RayTaskError of StoreUnavailableError", "RayTaskError of GetTimeoutError",
}  # fmt: skip
GONE: Final = {
    "ActorDiedError", "ActorHandleNotFoundError", "ActorPlacementGroupRemoved", "ActorUnschedulableError",
    "AsyncioActorExit", "AuthenticationError", "LocalRayletDiedError", "NodeDiedError", "ObjectFreedError",
    "ObjectLostError", "ObjectReconstructionFailedError", "ObjectRefStreamEndOfStreamError", "OutOfMemoryError",
    "OwnerDiedError", "RayActorError", "RayCgraphCapacityExceeded", "RayChannelError", "RayDirectTransportError",
    "RayError", "RaySystemError", "ReferenceCountingAssertionError", "RuntimeEnvSetupError",
    "StreamingGeneratorReplayInconsistentError", "TaskCancelledError", "TaskPlacementGroupRemoved",
    "TaskUnschedulableError", "WorkerCrashedError", "RayTaskError of ActorDiedError",
}  # fmt: skip
FENCED: Final = {"RayTaskError of FencedError"}
BUG: Final = {
    "ActorAlreadyExistsError", "CrossLanguageError", "OufOfBandObjectRefSerializationException",
    "UnserializableException", "UserCodeException", "RayTaskError of ClusterError", "RayTaskError of ZeroDivisionError",
}  # fmt: skip
TABLE: Final = {
    name: meaning.value
    for meaning, names in (
        (Meaning.AGAIN, AGAIN), (Meaning.GONE, GONE), (Meaning.FENCED, FENCED), (Meaning.BUG, BUG),
    )
    for name in names
}  # fmt: skip
NEWER: Final = {"StreamingGeneratorReplayInconsistentError"}  # than the oldest Ray
ERRORS: Final = errors_of_ray()
# By whom it was raised: the called code has answered, or there is no answer.
RAISED: Final = {name for name in ERRORS if name.startswith("RayTaskError")}


def each_error(test: Callable[..., None]) -> Callable[..., None]:
    """One test for all of them: it gets the `name` of each."""

    @wraps(test)
    def with_all(**fixtures: Any) -> None:
        for name in sorted(ERRORS):
            try:
                test(**fixtures, name=name)
            except BaseException as error:
                error.add_note(f"with {name}")
                raise

    wanted = inspect.signature(test)
    others = [one for one in wanted.parameters.values() if one.name != "name"]
    with_all.__signature__ = wanted.replace(parameters=others)  # type: ignore[attr-defined]
    return with_all


@pytest.mark.processes
@pytest.mark.parametrize("version", ["oldest", "newest"])
def test_each_class_of_ray_has_its_meaning(version: str) -> None:
    first = [str(oldest_ray())] if version == "oldest" else []
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.ray_errors"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*first, str(ROOT)])},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    missing = NEWER if version == "oldest" else set()
    assert json.loads(done.stdout) == {
        name: meaning for name, meaning in TABLE.items() if name not in missing
    }


def test_an_error_of_a_later_ray_is_the_end_of_the_other_side() -> None:
    class LaterError(RayError):
        pass

    assert meaning_of(LaterError("new")) is Meaning.GONE
    assert meaning_of(ValueError("ours")) is Meaning.BUG
    assert why(LaterError("new\nwith a traceback")) == "new"


# ---------------------------------------------------------------- keepers

ALPHA, BETA = "aa" * 28, "bb" * 28
EXAMINE, BEGIN, NEWS, LATER = 1, 2, 3, 5  # the n-th answer of a keeper


class Keepers:
    """A fleet of two hosts, in whose looks half a second passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ray, self.now, self.notes = StubRay(), 100.0, list[str]()
        self.ray.there = [
            {"NodeID": node, "Alive": True, "NodeManagerHostname": name, "Resources": {RESOURCE: 1}}
            for node, name in ((ALPHA, "alpha"), (BETA, "beta"))
        ]
        for module in (fleet_module, seats):
            monkeypatch.setattr(module, "ray", self.ray)
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=lambda _: None)
        monkeypatch.setattr(fleet_module, "time", clock)
        monkeypatch.setattr(
            fleet_module, "actor_class", lambda *_, **__: SimpleNamespace(remote=self._keeper)
        )
        prepared: Any = SimpleNamespace(
            config=make_config({}),
            settings=SimpleNamespace(spec=None, engine=None),
            records=None,
            run_dir=Path("run"),
        )
        self.fleet = Fleet(prepared, self.notes.append, hosts=True)
        self.fleet._master = self.ray.actor("master", {})

    def _keeper(self, node: str, *_: object) -> Stub:
        count = sum(one.name.startswith(node) for one in self.ray.actors)
        answers = {"examine": node, "begin": None, "news": News(), "leave": {}}
        return self.ray.actor(f"{node} {count}", answers)

    def look(self, times: int) -> None:
        for _ in range(times):
            self.now += 0.5
            self.fleet._look(self.now)
        for thread in self.fleet._tidying:
            thread.join()

    def of(self, node: str) -> list[Stub]:
        return [one for one in self.ray.actors if one.name.startswith(node)]

    def left(self) -> set[str]:
        """Keepers that were not ended."""
        ended = {one.name for one in self.ray.killed}
        return {one.name for one in self.ray.actors} - ended - {"master"}

    @property
    def training(self) -> set[str]:
        """The keepers that the fleet has, and that have begun."""
        kept = self.fleet._keepers.values()
        return {one.handle.name for one in kept if one.seats is not None}


@each_error
@pytest.mark.parametrize("answer", [EXAMINE, BEGIN, NEWS, LATER])
def test_an_error_ends_one_keeper_and_another_one_begins_while_the_other_host_is_heard(
    monkeypatch: pytest.MonkeyPatch, name: str, answer: int
) -> None:
    keepers, error = Keepers(monkeypatch), ERRORS[name]
    keepers.ray.faults[f"{ALPHA} 0", answer] = lambda: Reference(error=error)
    keepers.look(20)
    (beta,) = keepers.of(BETA)
    assert beta.asked.count("news") >= 8
    refused = name in RAISED and name in BUG
    assert (
        keepers.training
        == keepers.left()
        == ({f"{BETA} 0"} if refused else {f"{ALPHA} 1", f"{BETA} 0"})
    )
    why = f"node alpha:aaaaaa: {raised_by(error)}"
    assert keepers.fleet._refused == ({ALPHA: why} if refused else {})


@each_error
def test_a_host_whose_keepers_fail_until_ray_knows_its_death_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As one that has come back at once, under another id: the other hosts are served meanwhile."""
    keepers, error = Keepers(monkeypatch), ERRORS[name]
    for count in range(40):
        for answer in range(1 if count else NEWS, 20):
            keepers.ray.faults[f"{ALPHA} {count}", answer] = lambda: Reference(error=error)
    keepers.look(4)
    keepers.ray.there.append({**keepers.ray.there[1], "NodeID": "cc" * 28})
    keepers.look(4)
    served = {f"{BETA} 0", f"{'cc' * 28} 0"}
    assert served <= keepers.training
    keepers.look(20)
    assert len(keepers.of(ALPHA)) <= 15, "one a second at most"
    keepers.ray.there[0]["Alive"] = False
    keepers.look(2)
    assert keepers.training == keepers.left() == served
    assert keepers.fleet._refused or keepers.notes == ["alpha:aaaaaa: the node is gone"]


@pytest.mark.parametrize("answer", [EXAMINE, BEGIN, NEWS, LATER])
def test_a_late_answer_of_a_keeper_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    keepers = Keepers(monkeypatch)
    keepers.ray.faults[f"{ALPHA} 0", answer] = lambda: Reference(
        ALPHA if answer == EXAMINE else News() if answer >= NEWS else None, late=60
    )
    keepers.look(30)
    (beta,) = keepers.of(BETA)
    assert beta.asked.count("news") >= 12
    keepers.look(40)
    assert keepers.training == keepers.left() == {f"{ALPHA} 0", f"{BETA} 0"}


def test_a_keeper_on_another_node_than_its_own_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    keepers = Keepers(monkeypatch)
    keepers.ray.faults[f"{ALPHA} 0", EXAMINE] = lambda: Reference(BETA)
    keepers.look(12)
    assert keepers.training == keepers.left() == {f"{ALPHA} 1", f"{BETA} 0"}
    assert not keepers.fleet._refused


@each_error
def test_a_keeper_that_could_not_follow_another_master_begins_again(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    keepers, error = Keepers(monkeypatch), ERRORS[name]
    keepers.look(4)
    keepers.ray.faults[f"{ALPHA} 0", "follow", 1] = lambda: Reference(error=error)
    keepers.fleet.follow(keepers.ray.actor("master", {}), SimpleNamespace())  # type: ignore[arg-type]
    keepers.look(8)
    successor = 0 if name in GONE else 1  # the master is gone: its successor is followed
    assert keepers.training == keepers.left() == {f"{ALPHA} {successor}", f"{BETA} 0"}


@each_error
def test_the_nodes_of_a_cluster_are_examined_again_after_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    keepers, error = Keepers(monkeypatch), ERRORS[name]
    keepers.ray.faults[f"{ALPHA} 0", EXAMINE] = lambda: Reference(error=error)
    placed = SimpleNamespace(begin=lambda *_: 2, look=list, holds_one=lambda _: True)
    monkeypatch.setattr(keepers.fleet, "_seats", placed)
    keepers.fleet.place()
    refused = name in RAISED and name in BUG
    assert set(keepers.fleet._keepers) == ({BETA} if refused else {ALPHA, BETA})
    assert list(keepers.fleet._refused) == ([ALPHA] if refused else [])


# ---------------------------------------------------------------- workers


class Hosted:
    """A host with two workers, in whose looks half a second passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.ray, self.now = StubRay(), 100.0
        self.joined: list[Assignment] = []
        for module in (worker_host, worker_process):
            monkeypatch.setattr(module, "ray", self.ray)
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(worker_host, "time", clock)
        monkeypatch.setattr(worker_host, "share_of", lambda *_: None)
        monkeypatch.setattr(WorkerHost, "_holding", lambda *_: Holding())
        monkeypatch.setattr(worker_process, "_spawn", lambda *_: self._worker())
        alive = SimpleNamespace(status=lambda: "running", kill=int, wait=lambda _: None, pid=1)
        monkeypatch.setattr(worker_process, "_process", lambda _: alive)
        settings: Any = SimpleNamespace(
            spec=None, cores=None, serves=False, timeout_s=30.0, epoch=1, engine=None
        )
        self.host = WorkerHost(self.master("master"), settings, "alpha", folder, folder, None)
        monkeypatch.setattr(self.host._spare, "look", lambda *_: None)
        self.settings = settings

    def master(self, name: str) -> Stub:
        places = iter(range(100))
        answers = {
            "enlist": 50,
            "assign": lambda *_: Assignment(next(places), 1, 0, 1, 8),
            "adopt": lambda _, place: place,
            "join": lambda place, *_: self.joined.append(place),
            "attend": Orders(2, 0, (), ()),
        }
        return self.ray.actor(name, answers)

    def _worker(self) -> Stub:
        ready = WorkerReady(SimpleNamespace(process=1), 8, 0, False)  # type: ignore[arg-type]
        name = f"worker {sum(one.name.startswith('worker') for one in self.ray.actors)}"
        return self.ray.actor(name, {"process": 1, "start": ready, "follow": ready})

    def look(self, times: int) -> None:
        for _ in range(times):
            self.now += 0.5
            with self.host._lock:
                self.host._look(self.now)

    @property
    def all_train(self) -> bool:
        places = [one.place for one in self.host._processes if one.starting is None]
        return len(places) == 2 and all(place in self.joined for place in places)


@each_error
@pytest.mark.parametrize(
    "where", ["worker 0 start", "master assign", "master join", "master attend"]
)
def test_a_worker_begins_after_an_error_and_the_other_one_is_not_held_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, where: str
) -> None:
    hosted, error = Hosted(monkeypatch, tmp_path), ERRORS[name]
    process, method = where.rsplit(" ", 1)
    if method == "assign":  # for the successor of one that could not start
        hosted.ray.faults["worker 0", "start", 1] = lambda: Reference(error=error)
    number = 3 if method == "assign" else 1
    hosted.ray.faults[process, method, number] = lambda: Reference(error=error)
    hosted.host.begin(2)
    if method == "attend":
        with pytest.raises(RayError):  # at the end of a look, which is over then
            hosted.look(4)
    hosted.look(2)
    assert len(hosted.joined) >= (1 if method != "attend" else 2), "the other one"
    hosted.look(20)
    master = hosted.ray.actors[0]
    assert master.asked.count("attend") >= 5
    # The master is gone: its successor takes this worker as it is
    if method == "join" and name in GONE - RAISED:
        assert len(hosted.joined) == 1
        assert not hosted.ray.killed
        hosted.host.follow(hosted.master("successor"), hosted.settings)
        hosted.look(2)
        assert not hosted.ray.killed
    assert hosted.all_train


@each_error
def test_a_worker_that_a_new_master_cannot_adopt_begins_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    hosted = Hosted(monkeypatch, tmp_path)
    hosted.host.begin(2)
    hosted.look(4)
    assert hosted.all_train
    hosted.joined.clear()
    error = ERRORS[name]
    hosted.ray.faults["successor", "adopt", 1] = lambda: Reference(error=error)
    successor = hosted.master("successor")
    if name in GONE - RAISED:  # gone, too: the next one adopts them
        with pytest.raises(RayError):
            hosted.host.follow(successor, hosted.settings)
        assert not hosted.ray.killed
        successor = hosted.master("next")
    hosted.host.follow(successor, hosted.settings)
    hosted.look(6)
    assert hosted.all_train
    assert len(hosted.ray.killed) == (0 if name in GONE - RAISED else 1)


def test_a_host_is_heard_while_its_workers_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that is cut off then is named, not only its workers."""
    hosted = Hosted(monkeypatch, tmp_path)
    hosted.ray.faults["worker 0", "start", 1] = lambda: Reference(
        WorkerReady(SimpleNamespace(process=1), 8, 0, False),  # type: ignore[arg-type]
        late=20,
    )
    hosted.host.begin(2)
    clock = itertools.count(100.0, 0.5)
    monkeypatch.setattr(worker_host.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(hosted.host, "_watcher", SimpleNamespace(start=lambda: None))
    hosted.host.hand_over(())
    assert hosted.all_train
    assert hosted.ray.actors[0].asked.count("attend") >= 5


# ---------------------------------------------------------------- the master


@each_error
def test_the_end_of_a_turn_and_of_a_worker_is_an_event_whatever_the_error(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(ray_cluster, "CAUSE_WAIT_S", 0.0)
    ray, error = StubRay(), ERRORS[name]
    for method, kind in (("turn", Refused if name in RAISED else Left), ("serve", Left)):
        cluster = RayCluster(lambda *_: None)
        worker = ray.actor(method, {"serve": None})
        ray.faults[method, method, 1] = lambda: Reference(error=error)
        cluster._handles[0, 1] = worker
        if method == "turn":
            cluster._train(SimpleNamespace(worker=0, incarnation=1, ticket=5))  # type: ignore[arg-type]
        else:
            cluster._served(0, 1, error)
        event = cluster.next_event(60.0)
        assert isinstance(event, kind)


@each_error
def test_a_worker_that_cannot_take_its_new_shard_leaves(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(host_manager, "CAUSE_WAIT_S", 0.0)
    monkeypatch.setattr(host_manager, "ray", ray := StubRay())
    lost: list[str] = []
    cluster = SimpleNamespace(lost=lambda *values: lost.append(values[-1]))
    for answer in (1, 2):
        ray.faults[f"worker {answer}", answer] = lambda: Reference(error=ERRORS[name])
        manager: Any = SimpleNamespace(
            _cluster=cluster, _admit=lambda place, _: place, _shut_out=lambda *_: None
        )
        place = Assignment(0, 2, 0, 1, 8)
        HostManager._rebuild(manager, ray.actor(f"worker {answer}", {}), place, place)
    assert len(lost) == 2


@each_error
def test_requests_to_a_server_are_answered_or_lost(name: str) -> None:
    ray = StubRay(faults={("server", 1): lambda: Reference(error=ERRORS[name])})
    calls = ServerCalls(ray.actor("server", {"do_all": lambda requests: [7] * len(requests)}))
    first, second = calls.ask(Probe()), calls.ask(Probe())
    if isinstance(raised_by(ERRORS[name]), SpeedoError):
        assert first.result() is raised_by(ERRORS[name])
    elif name in RAISED:
        assert first.exception() is ERRORS[name], "it keeps its traceback"
    else:
        assert isinstance(first.result(), ServerLost)
    assert second.result() == 7


@pytest.mark.slow
@each_error
def test_a_test_is_made_by_another_tester_unless_the_tester_itself_says_why_not(name: str) -> None:
    ray, told = StubRay(), list[PartTested]()
    ray.faults["tester", 1] = lambda: Reference(error=ERRORS[name])
    testers = iter([ray.actor("tester", {}), ray.actor("another", {"evaluate": ("part",)})])
    tests = ShareTests(lambda: next(testers), told.append)
    tests.tester_in_place_of(None)
    tests.ask(Evaluate(5, 5))
    wait_until(lambda: told)
    (one,) = told
    assert bool(one.problem) == (name in RAISED)


@each_error
def test_a_master_is_replaced_unless_it_says_itself_why_it_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    error, replaced = ERRORS[name], list[Exception]()
    for where in ("status", "run"):
        replaced.clear()
        ray = StubRay(faults={("master", where, 1): lambda: Reference(error=error)})
        for method in ("wait", "get"):
            monkeypatch.setattr(f"ray.{method}", getattr(ray, method))
        actor = ray.actor("master", {"status": None, "run": "the result"})
        master = SimpleNamespace(actor=actor, run=None, tester=None, asked_to_stop="")

        def begin(master: Any = master, actor: Stub = actor) -> None:
            master.run = actor.run.remote()
            master.run.late = 1

        def replace(error: Exception, begin: Any = begin) -> bool:
            replaced.append(error)
            begin()
            return True

        begin()
        master.replace = replace
        master.settings = SimpleNamespace(for_others=lambda: None)
        servers: Any = SimpleNamespace(
            prepared=SimpleNamespace(run_dir=tmp_path, settings=SimpleNamespace(redis_is_ours=False)),
            records=SimpleNamespace(problem=lambda: None),
            lost=lambda: None, require=lambda: None, show_output=lambda: None,
        )  # fmt: skip
        watch: Any = SimpleNamespace(show=lambda _: None, note=lambda _: None)
        host: Any = SimpleNamespace(follow=lambda *_: None, last_died=None)
        follow = partial(launch._follow, master, servers, watch, (), host)  # type: ignore[arg-type]
        if name in RAISED:
            with pytest.raises((type(raised_by(error)), EngineError)):  # type: ignore[arg-type]
                follow()
            assert not replaced
        else:
            assert follow() == "the result"
            assert replaced == [error]


def test_scripts_that_start_when_the_run_ends_are_let_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their node was refused: `wait() expected a list of ray.ObjectRef`."""
    hosted = Hosted(monkeypatch, tmp_path)
    for worker in (0, 1):
        hosted.ray.faults[f"worker {worker}", "start", 1] = lambda: Reference(late=60)
    hosted.host.begin(2)
    wait = hosted.ray.wait

    def ends(*asked: Any, **options: Any) -> Any:
        monkeypatch.setattr(hosted.ray, "wait", wait)
        assert hosted.host.let_scripts_end(3, (), lambda: None) == []
        return wait(*asked, **options)

    monkeypatch.setattr(hosted.ray, "wait", ends)
    hosted.host.hand_over(())
    assert hosted.joined == []
