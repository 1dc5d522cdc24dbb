"""The master actor: assigns slots, admits workers, runs the training loop, reports the state of the run."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray

from speedo.actors.host_manager import EndOfWorker, HostManager, Orders
from speedo.actors.ray_cluster import RayCluster
from speedo.actors.ray_node.actor_class import actor_class
from speedo.actors.script_questions import ScriptQuestions
from speedo.actors.servers.ray_servers import RayServers
from speedo.actors.servers.served_master import ServedMaster
from speedo.actors.store_calls import StoreCalls
from speedo.actors.tester_actor import TesterActor
from speedo.actors.worker_actor import WorkerReady
from speedo.actors.worker_process import started
from speedo.engines.evaluation import PartOfTest
from speedo.engines.solver.holding import Holding
from speedo.errors import ClusterError, StoreError
from speedo.exchange.vector import Layout
from speedo.master.center import Center
from speedo.master.fetch_pacing import Pace
from speedo.master.lease_book import LeaseBook
from speedo.master.leases import Leases
from speedo.master.meeting import Meeting
from speedo.master.slots import Assignment
from speedo.messages import Event, StoreTrouble, Trained
from speedo.run.build import TICKETS_OF_AN_EPOCH, build_training
from speedo.run.caffe_snapshot import CaffeSnapshot, is_snapshot, read_snapshot
from speedo.run.config.run_config import RunConfig
from speedo.run.open_store import fence_of, impatient_store, log_trouble, run_store
from speedo.run.result import RunResult
from speedo.run.run_facts import run_facts
from speedo.run.run_parts import run_parts
from speedo.run.script_job import ScriptJob
from speedo.run.script_link import Question, ToScript
from speedo.run.script_resume import former_run
from speedo.run.script_start import ScriptStart
from speedo.run.settings import RunSettings
from speedo.run.takeover import Takeover
from speedo.run.trained_model import CaffeModel
from speedo.run.training import Training
from speedo.run_dir.checkpoint_file import Checkpoint, read_checkpoint
from speedo.run_dir.directory import LOGS
from speedo.run_dir.events import SCRIPT_ENDED
from speedo.storage.base import remove_run
from speedo.watch.status import Status

NAME = "master"
FORMER_S = 60.0  # after which the vectors of a former master are removed
Place = Assignment | EndOfWorker | None


class MasterActor(ServedMaster):
    """A thin shell around `speedo.run.training.Training`."""

    def __init__(
        self,
        config: RunConfig,
        settings: RunSettings,
        run_dir: Path,
        scratch: Path,
        records: int | None,
        checkpoint: Path | None,
        takes_hosts: bool,
        takes_over: bool = False,
    ) -> None:
        """`scratch` takes the small files of engine and tester; its owner removes it. `takes_hosts`: workers may join
        from other machines. One that `takes_over` goes on from where the former master was, with its workers."""
        from speedo.engines.native_failures import capture_stderr
        from speedo.storage.redis.users import NoUsers, StoreUsers

        capture_stderr(run_dir / LOGS / "master.log")
        self._config, self._records = config, records
        self._settings, self._run_dir, self._scratch = settings, run_dir, scratch
        self._myself = ray.get_runtime_context().current_actor
        self._hosts: set[str] = set()
        self._places: dict[str, list[Assignment]] = {}
        self._cluster = RayCluster(
            lambda worker, incarnation: self._release(worker, incarnation),
            Path(settings.near.folder) if settings.near.folder else None,
            # With servers there is no one cable that all fetch over.
            None if settings.serves else Pace(note=partial(print, file=sys.stderr, flush=True)),
            self._make_tester,
            config.testers,
        )
        self._store_calls = StoreCalls()
        self._access: StoreUsers | NoUsers = NoUsers()
        if settings.redis_url:
            self._access = StoreUsers(
                settings.redis_url,
                settings.keyspace,
                ca_pem=settings.redis_ca,
                saved=settings.redis_is_ours,
                keeps_former=takes_over,
                patience_s=settings.timeout_s,
                on_trouble=partial(self._trouble_of, "users"),
            )
        self._troubles: dict[str, str] = {}
        self._troubling = threading.Lock()
        self._servers = RayServers(
            settings,
            config.servers,
            config.timeout,
            config.min_workers,
            partial(self._trouble_of, "users"),
        )
        self._fence = fence = fence_of(settings)
        self._store = run_store(
            settings.redis_url,
            settings,
            self._store_trouble,
            to_both=takes_hosts,
            guard=None if fence is None else fence.guard,
            has_worked=True,  # for its command
        )
        self._meeting = Meeting(settings.workers, self._cluster.cause_of)
        self._former = Takeover(self._store, run_dir, fence) if takes_over else None
        script = isinstance(settings.spec, ScriptJob)
        self._training: Training | None = None
        self._final: int | None = None  # the version that the run came to
        if script:
            former = former_run(checkpoint, self._former, settings)
            resume = None if former is None else former.for_workers(settings.workers)
            parts = run_parts(config, settings, run_dir, self._store, records, resume, fence)
            book = LeaseBook(settings.seed) if former is None else former.book
            leases, tests = Leases(book, parts.board.notice), self._cluster.take_script()
            self._questions = ScriptQuestions(leases, tests, self._meeting)
            self._start = ScriptStart(
                config,
                parts,
                self._cluster,
                leases,
                tests,
                former,
                open_store=lambda: impatient_store(settings),
                servers=self._servers if settings.serves else None,
                built=self._divide_center,
                taken_over=self._former,
            )
            self._training = self._start.go_on()
        else:
            begun = None if checkpoint is None else _read(checkpoint)
            model = CaffeModel(config, settings, self._former or begun, scratch)
            resume = model.resume
            parts = run_parts(config, settings, run_dir, self._store, records, resume, fence)
            self._training = training = build_training(
                config,
                parts,
                model,
                self._cluster,
                open_store=lambda: impatient_store(settings),
                servers=self._servers if settings.serves else None,
                taken_over=self._former,
            )
            self._divide_center(training)
        self._parts, self._roster, self._board = parts, parts.roster, parts.board
        self._host_manager = HostManager(
            self._cluster,
            self._roster,
            self._board,
            self._admitted,
            self._shut_out,
            restarts=config.restarts,
            reshard_after_s=0.0 if script else config.reshard_after,
            batch_size=settings.spec.batch_size,
            split=config.splits_batch,
        )

    # ------------------------------------------------------------ the run

    def ready(self) -> int:
        """The number of the process, once the engine is built."""
        return os.getpid()

    def facts(self) -> dict[str, Any]:
        """The run and its net as built here, and the time, for hosts that compare theirs before they join."""
        layout = Layout(()) if self._training is None else self._training.layout
        return run_facts(self._config, self._settings, layout, self._records)

    def start_tester(self) -> None:
        """Returns once all testers run; tests that are due meanwhile wait. Raises `EngineError`, `StoreError`."""
        self._cluster.tests.start()

    def run(self) -> RunResult:
        if self._former is not None:
            tidying = threading.Timer(FORMER_S, self._remove_former)
            tidying.daemon = True
            tidying.start()
        try:
            training = self._training or self._start.wait()
            self._final = (result := training.run()).version
            return result
        finally:
            self._cluster.hang_up()  # scripts look whether the run is over

    def _remove_former(self) -> None:
        """What a former master has left in the store, by now for nobody. Not by the store of the driver's thread."""
        with suppress(StoreError), closing(impatient_store(self._settings)) as store:
            remove_run(store, self._settings.run, self._settings.epoch - 1)

    def clean_store(self) -> None:
        try:
            self._parts.clean_store()
        finally:
            self._access.close()
            self._servers.close()

    def stop(self, reason: str, within_s: float = 0.0) -> None:
        self._servers.stop(reason)
        if self._training is None:
            self._start.stop(reason)
        self._cluster.stop(reason, within_s)

    def status(self) -> Status:
        self._host_manager.tell_silent()
        status = (self._training or self._parts).status()
        return replace(status, servers=self._servers.status())

    # ------------------------------------------------------------ hosts and their workers

    def settings(self, host: str) -> RunSettings:
        """The settings with which a host starts workers; from now on the master waits until this host says farewell.

        A host that joins again has lost its workers: their slots are free for those that it will start.
        """
        for place in self._places.pop(host, ()):
            if self._roster.now_at(place.worker, place.incarnation) is not None:
                self.lost(place, "its host came back without it")
        self._hosts.add(host)
        parts = self._training.parts if self._training else self._parts
        return parts.settings.for_others()

    def assign(self, host: str, former: int | None, request: int) -> Place:
        """A place for one more worker of this host, or for the successor of the worker in slot `former`.

        One that was set aside has none. A `request` that is repeated gets the same place. None while the store has not
        answered: ask again. Raises `ClusterError` while a server is missing, `StoreError`.
        """
        if former is not None and (why := self._cluster.set_aside(former)) is not None:
            self._board.expect(former, "gone")
            return EndOfWorker(former, 0, why, True)
        place = self._roster.assign(self._host_manager.samples(), host, request)
        if former is not None and former != place.worker:
            self._board.expect(former, f"gone, now worker {place.worker}")
        return self._at_host(host, place)

    def adopt(self, host: str, place: Assignment) -> Assignment | None:
        """The same place, for a worker of this host that had it from a former master; else as `assign`.

        Raises `ClusterError` if it is taken, or the run goes back to a checkpoint: workers begin anew then.
        """
        if self._former is None or not self._former.newest or not self._roster.adopt(place):
            raise ClusterError(f"worker {place.worker} of the former master begins anew")
        return self._at_host(host, place)

    def _at_host(self, host: str, place: Assignment) -> Assignment | None:
        """The place with its access to the store, once it has that; a host that leaves before gives it back."""
        places = self._places.setdefault(host, [])
        if place not in places:
            places.append(place)
        self._board.name_host(place.worker, host)
        who = place.worker, place.incarnation
        try:
            return self._store_calls.ask(who, partial(self._admitted, place))
        except (StoreError, ClusterError):
            places.remove(place)
            self._release(*who)
            raise

    def join(self, place: Assignment, handle: Any, ready: WorkerReady) -> None:
        """Admit a worker, or let it wait for a script's model; raises `ClusterError` if its net is another."""
        try:
            if self._training is None:
                later = partial(self._join_after_model, place, handle, ready)
                self._training = self._start.take(place.worker, ready.model, later)
            if self._training is not None:
                self._check(place.worker, ready, self._training.layout)
                ready, late = self._taken_up(ready, self._training)
                self._cluster.join(place.worker, place.incarnation, handle, ready)
                if self._final is not None and ready.model is not None:
                    handle.over.remote(self._final)  # who lets scripts end may not know of it
                if late is not None:
                    self._cluster.answered(late)
                if ready.done:
                    self.ended(place)
        except (ClusterError, StoreError):
            self._release(place.worker, place.incarnation)
            raise

    def _taken_up(
        self, ready: WorkerReady, training: Training
    ) -> tuple[WorkerReady, Trained | None]:
        """The same without a result of a former master that is in the center, or can never be; the latter apart."""
        handed, former = ready.handed, self._former
        if handed is None or former is None:
            return ready, None
        if not former.counts(handed.worker, handed.ticket):
            return replace(ready, handed=None), None
        if not training.take_up(handed):
            return replace(ready, handed=None), handed
        assert isinstance(training.center, Center)
        training.center.handed[handed.ticket] = handed.ticket // TICKETS_OF_AN_EPOCH
        return ready, None

    def _join_after_model(self, place: Assignment, handle: Any, ready: WorkerReady) -> None:
        try:
            self.join(place, handle, ready)
        except ClusterError as error:  # its host has its answer already
            self.lost(place, str(error))

    def _check(self, worker: int, ready: WorkerReady, layout: Layout) -> None:
        if ready.model is not None:
            self._start.check(worker, ready.model, layout, gradients=bool(ready.meets))
        elif ready.layout != layout.digest:
            raise ClusterError(
                f"worker {worker} has a net that differs from the master's: run the same SpeeDO and Caffe on every node"
            )

    def ask(self, place: Assignment, question: Question) -> ToScript | None:
        return self._questions.answer(place, question)

    def answered(self, message: Event) -> None:
        """A far worker's answer to a command that was passed on to its script."""
        self._cluster.answered(message)

    def missing(self, members: tuple[tuple[int, int], ...]) -> str:
        return self._meeting.missing(members)

    def place_of(self, worker: int, incarnation: int) -> Assignment | None:
        """The present place of a worker, which may have another share of the batch."""
        return self._roster.now_at(worker, incarnation)

    def ended(self, place: Assignment) -> None:
        """A worker's script has come to its end."""
        self.lost(place, SCRIPT_ENDED, done=True)

    def lost(self, place: Assignment, cause: str, outlook: str = "", *, done: bool = False) -> None:
        """A worker is gone, in whatever slot it is now; `outlook` is what its host will do."""
        if self._training is None:
            self._start.forget(place.worker)
        now_at = self._roster.now_at(place.worker, place.incarnation) or place
        self._board.expect(place.worker, outlook)
        self._cluster.lost(now_at.worker, now_at.incarnation, cause, done=done)

    def gave_up(self, worker: int, cause: str) -> None:
        """A host has given up this worker under a former master."""
        self._board.given_up.add(worker, cause, self._board.iteration)

    def enlist(self, host: str, count: int, cores: int, holding: Holding | None = None) -> int:
        """Register a host that is about to start workers; returns how often it restarts one that died.

        Raises `ClusterError` if it has other records than the run needs.
        """
        restarts = self._host_manager.enlist(host, count, cores, holding)
        self._servers.enlist(host, count)
        return restarts

    def attend(self, host: str, alive: tuple[tuple[int, int], ...]) -> Orders:
        """Takes the host's workers as (slot, incarnation); returns the host's orders."""
        return self._host_manager.attend(host, alive)

    def scale(self, workers: int) -> str:
        """Change the total number of workers on all hosts; raises `SpeedoError` if that cannot be done."""
        return self._host_manager.scale(workers)

    def want(self, workers: int) -> None:
        """This is the number of workers that the user wants; who places them is not the master."""
        self._host_manager.want(workers)

    def tell_to_leave(self, host: str, within_s: float) -> str:
        return self._host_manager.tell_to_leave(host, within_s)

    def host_leaves(self, host: str, why: str) -> bool:
        return self._host_manager.host_leaves(host, self._places.get(host, ()), why)

    def farewell(self, host: str) -> None:
        """This host has released its workers."""
        self._hosts.discard(host)
        for place in self._places.pop(host, ()):  # also one whose answer never came to it
            if self._roster.now_at(place.worker, place.incarnation) is not None:
                self.lost(place, "its host has left")
        self._host_manager.discharge(host)
        self._servers.discharge(host)

    def wait_for_hosts(self, timeout_s: float) -> bool:
        """Whether every host has said farewell in time."""
        deadline = time.monotonic() + timeout_s
        while self._hosts and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self._hosts

    def _make_tester(self, share: PartOfTest) -> Any:
        """A new tester for this share, the first or a replacement. Raises `EngineError`, `StoreError`."""
        name = f"tester-{share.index}" if share.index else "tester"
        log, scratch = self._run_dir / LOGS / f"{name}.log", self._scratch / name
        scratch.mkdir(exist_ok=True)
        settings = self._settings.for_others()
        tester = actor_class(TesterActor).remote(settings, share, log, scratch, self._myself)
        started(tester.start.remote(), log, "the tester")
        tester.connect.remote(self._access.admit_reader(), self._servers.admit_reader())
        return tester

    def testing(self, tester: int, version: int, done: int, batches: int) -> None:
        """A tester has done this many of the batches of a test."""
        self._cluster.tests.passed(tester, version, done, batches)

    def _store_trouble(self, problem: str | None) -> None:
        worst = self._trouble_of("vectors", problem)
        if self._training is not None:
            self._training.tell(StoreTrouble(worst))

    def _trouble_of(self, connection: str, problem: str | None) -> str:
        """Show the worst problem, and return it; a master that begins may wait for the store before it has a board."""
        worst, board = self._worst(connection, problem), getattr(self, "_board", None)
        if board is None:
            log_trouble(problem)
        else:
            board.trouble_with_store(worst)
        return worst

    def _worst(self, connection: str, problem: str | None) -> str:
        """The worst problem of all the master's connections, after this news of one of them."""
        with self._troubling:
            self._troubles[connection] = problem or ""
            return next(filter(None, self._troubles.values()), "")

    def store_trouble_of(self, worker: int, incarnation: int, problem: str) -> None:
        """Why a worker waits for the store; empty once it does not."""
        if place := self._roster.now_at(worker, incarnation):
            self._board.trouble_of_worker(place.worker, problem)

    def _admitted(self, place: Assignment, beside: int | None = None) -> Assignment:
        """The place with a new user of the store; those of all incarnations but `beside` lose their access."""
        if not isinstance(self._settings.spec, ScriptJob):  # whose servers come with its model
            place = self._servers.admit_worker(place, beside)
        url = self._access.admit_worker(place.worker, place.incarnation, beside)
        return replace(place, redis_url=url)

    def _release(self, worker: int, incarnation: int) -> None:
        self._roster.release(worker, incarnation)
        self._shut_out(worker, incarnation)

    def _shut_out(self, worker: int, incarnation: int) -> None:
        self._store_calls.later(partial(self._access.dismiss, worker, incarnation))
        self._store_calls.later(partial(self._servers.dismiss, worker, incarnation))


def _read(path: Path) -> Checkpoint | CaffeSnapshot:
    return read_snapshot(path) if is_snapshot(path) else read_checkpoint(path)
