"""The worker actor: one process with one Caffe solver, doing turns as it is commanded."""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from speedo.actors.death_causes import died_natively
from speedo.engines.base import Engine, ModelEngine
from speedo.engines.layer_notes import FILE, note_layers
from speedo.engines.make import (
    EngineChoice,
    let_others_run,
    make_engine,
    prepare_process,
    use_threads,
)
from speedo.engines.native_failures import capture_stderr
from speedo.errors import MissingKeyError, PayloadError, SpeedoError, TeamBrokenError
from speedo.exchange.channel import WorkerChannel, first_line, refusal
from speedo.exchange.team_meeting import TeamMeeting
from speedo.master.slots import Assignment
from speedo.messages import SaveState, StateSaved, Train, Trained
from speedo.run.script_job import FirstModel
from speedo.run.settings import RunSettings
from speedo.storage.base import Store
from speedo.system import failpoints
from speedo.system.cores import UNBOUND, CoreShare, list_of
from speedo.system.runs_at import RunsAt
from speedo.worker.membership import Membership
from speedo.worker.team_turn import TeamMember
from speedo.worker.turn_pipeline import TurnPipeline

ASK_S: Final = 2.0  # for the master's answer
Argument = TypeVar("Argument")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker that can train; `layout` is the digest of its parameters' layout, `near` and `overlaps` are its ways.

    `meets` is the same for workers that can meet as a team; empty if this one cannot. `lost` is what it could not
    restore of a checkpoint, as a sentence. `model` is that of a script, which may be `done`. `handed` is the result of
    its last turn for a former master, from center `begun`.
    """

    runs_at: RunsAt
    samples_per_step: int
    layout: int
    near: bool
    overlaps: bool = False
    meets: str = ""
    lost: str = ""
    model: FirstModel | None = None
    handed: Trained | None = None
    begun: int = 0
    done: bool = False


class WorkerActor:
    """A thin shell around `speedo.worker.turn.EngineWorker`.

    One thread has all to do with the solver, because Caffe's settings belong to threads: the actor's own or, where
    turns overlap, one of the pipeline's. Such an actor has several threads.
    """

    _pipeline: TurnPipeline | None = None
    _team: TeamMember | None = None
    _last: tuple[Train, Trained] | None = None  # its last turn, unless turns overlap

    def warm_up(self, choice: EngineChoice, threads: int = 1) -> None:
        """Load what every worker needs, before it is known which one this will be."""
        with suppress(SpeedoError):  # `start` will say so
            prepare_process(choice, threads)

    def process(self) -> int:
        return os.getpid()

    def start(
        self,
        settings: RunSettings,
        place: Assignment,
        log: Path,
        scratch: Path,
        data_root: Path | None,
        master: Any = None,
        share: CoreShare = UNBOUND,
    ) -> WorkerReady:
        """Build the solver, with its small files in the folder `scratch`, and connect to the store.

        `master` is notified when the store is waited for.
        """
        from speedo.run.open_store import overlaps

        again = died_natively(log)
        capture_stderr(log)
        failpoints.i_am_worker(place.worker)
        faulthandler.enable()  # a segmentation fault leaves its name in the log
        share.bind()  # before the engine's threads begin: they inherit it
        prepare_process(settings.engine, share.threads)
        self._choice = settings.engine.of_worker(share.number, share.workers)
        self._settings, self._data_root, self._master = settings, data_root, master
        self._share = share
        self._scratch = scratch
        self._scratch.mkdir(exist_ok=True)
        if again:  # its next death is to name the layer
            note_layers(self._scratch / FILE)
        if overlaps(settings):
            self._pipeline = TurnPipeline()
        return self._by_engine(self._start, place)

    def _by_engine(self, do: Callable[[Argument], Answer], argument: Argument) -> Answer:
        """Do it in the thread that the solver belongs to."""
        return do(argument) if self._pipeline is None else self._pipeline.by_engine(do, argument)

    def _start(self, place: Assignment) -> WorkerReady:
        return self._ready(self._begin(place))

    def _ready(self, engine: Engine) -> WorkerReady:
        from speedo.run.open_store import is_near, this_machine

        near = is_near(self._settings.near)
        overlaps = self._pipeline is not None
        share = self._share
        at = RunsAt(
            share.host,
            os.getpid(),
            use_threads(self._choice, share.threads),
            list_of(os.sched_getaffinity(0)),
            "" if self._choice.engine == "caffe" else self._choice.device,
        )
        meets = "" if self._team is None else f"{this_machine()}:{self._scratch.parent}"
        layout = engine.layout.digest
        return WorkerReady(at, engine.samples_per_step, layout, near, overlaps, meets, self._lost)

    def rebuild(self, place: Assignment) -> WorkerReady:
        """Take another place with the engine rebuilt, all but its history."""
        if self._pipeline is not None:
            self._pipeline.drain()
        if self._team is not None:
            self._team.close()
        return self._by_engine(self._rebuild, place)

    def _rebuild(self, place: Assignment) -> WorkerReady:
        history, state = self._worker.engine.history(), self._worker.solver_state
        self._worker.engine.close()  # before the next is built: memory may not hold both
        self._worker.close()
        engine = self._begin(place)
        engine.load_history(history)
        self._worker.solver_state = state
        return self._ready(engine)

    def follow(self, settings: RunSettings, place: Assignment, master: Any) -> WorkerReady:
        """Train on for another master, once the turn under way has ended; it is told what came of that turn."""
        if self._pipeline is not None:
            self._pipeline.drain()
        if self._team is not None:
            self._team.close()
        self._settings, self._master = settings, master
        ready = self._by_engine(self._follow, place)
        last = self._last  # until the next turn: this master may die before it has told of it
        # A result of a team is nobody's own.
        if last is None or last[0].team is not None:
            return ready
        return replace(ready, handed=last[1], begun=last[0].version)

    def _follow(self, place: Assignment) -> WorkerReady:
        former, was = self._worker, self._place
        former.close()
        self._connect(place.with_shard(was.shard, was.skip), former.engine)
        self._worker.samples, self._worker.solver_state = former.samples, former.solver_state
        return self._ready(former.engine)

    def _begin(self, place: Assignment) -> Engine:
        from speedo.run.open_store import run_store

        settings = self._settings
        let_others_run(self._choice, self._pipeline is not None)
        engine = self._engine_at(place)
        self._lost = ""
        self._connect(place, engine)
        if place.history is not None:
            with closing(run_store(place.redis_url, settings, self._store_trouble)) as store:
                self._lost = _take_over(engine, store, settings, place)
            self._worker.trains_alone()
        return engine

    def _connect(self, place: Assignment, engine: Engine) -> None:
        """Be this place's worker, which trains with this engine."""
        from speedo.run.between_hosts import between_hosts_of
        from speedo.run.host_memory import host_centers
        from speedo.run.open_store import run_store, server_stores
        from speedo.run.scratch import LEAVES
        from speedo.worker.turn import EngineWorker

        settings = self._settings
        self._place = place
        store = run_store(place.redis_url, settings, self._store_trouble)
        ahead = self._pipeline is not None
        self._worker = EngineWorker(
            settings.keyspace,
            place.worker,
            place.incarnation,
            engine,
            store,
            time.monotonic,
            settings.epoch,
            compression=settings.compression,
            outgoing=run_store(place.redis_url, settings, self._store_trouble) if ahead else None,
            servers=server_stores(place.servers, settings, self._store_trouble, both_ways=ahead),
            host=host_centers(settings, place, engine.layout),
            factors=settings.factors,
            leaves=(self._scratch.parent / LEAVES).exists,
            overlap=ahead,
            rebuild=self._rebuilt,
        )
        self._turn: Callable[[Train], Trained] = self._worker.turn
        if self._pipeline is not None:
            self._pipeline.worker = self._worker
        elif settings.teams:
            meeting = TeamMeeting(self._scratch.parent, place.worker, place.incarnation)
            reach = partial(between_hosts_of, settings, place, self._missing)
            membership = Membership(place.worker, meeting, reach)
            self._team = TeamMember(self._worker, membership)
            self._turn = self._team_turn

    def _engine_at(self, place: Assignment) -> ModelEngine:
        from speedo.engines.solver import Draws, solver_for_worker

        settings = self._settings
        spec = settings.solver.on_node(self._data_root)
        rank, count = place.shard.reads
        text = solver_for_worker(
            spec,
            rank=rank,
            count=count,
            batch_size=place.batch_size,
            seed=settings.seed + 1 + place.worker,
            scratch=self._scratch,
            draws=Draws.NONE,
        )
        engine = make_engine(
            self._choice,
            text,
            lr_policy=spec.lr_policy,
            rank=rank,
            count=count,
            folder=spec.folder,
            python_layers=spec.python_layers,
            scratch=self._scratch,
            threads=self._share.threads,
        )
        engine.advance(place.skip)
        return engine

    def _rebuilt(self, engine: Engine) -> Engine:
        """The engine for this worker's share of a batch that was divided anew, with the same history."""
        import ray
        from ray.exceptions import RayError

        was = self._place
        asked = self._master.place_of.remote(was.worker, was.incarnation)
        try:
            now: Assignment | None = ray.get(asked, timeout=ASK_S)
        except RayError:
            now = None
        if now is None:
            raise TeamBrokenError(f"the master did not say what worker {was.worker} reads")
        if now.shard == was.shard:
            return engine
        history = engine.history()
        engine.close()  # before the next is built: memory may not hold both
        built = self._engine_at(now)
        built.load_history(history)
        self._place, self._worker.samples = was.with_shard(now.shard, now.skip), 0
        return built

    def _store_trouble(self, trouble: str | None) -> None:
        """Say in the own log, and to the master without waiting for it, why the store is waited for."""
        from speedo.run.open_store import log_trouble

        log_trouble(trouble)
        if self._master is not None:
            with suppress(Exception):  # a master that cannot be reached is noticed by the host
                self._master.store_trouble_of.remote(
                    self._place.worker, self._place.incarnation, trouble or ""
                )

    def _missing(self, members: tuple[tuple[int, int], ...]) -> str:
        """Which of these is gone, as far as the master knows."""
        import ray

        if self._master is None:
            return ""
        try:
            found: str = ray.get(self._master.missing.remote(members), timeout=ASK_S)
        except Exception:  # a master that cannot be reached is noticed by the host
            return ""
        return found

    def _team_turn(self, command: Train) -> Trained:
        """Where the team is of several hosts, its sums travel in a thread beside the engine's."""
        assert self._team is not None
        let_others_run(self._choice, command.team is not None and bool(command.team.spread))
        return self._team.turn(command)

    def turn(self, command: Train) -> Trained:
        if self._pipeline is not None:
            return self._pipeline.submit(command).result()
        self._last = None
        trained = self._turn(command)
        self._last = command, trained
        return trained

    def serve(self, folder: str, worker: int, incarnation: int) -> None:
        """Do turns as the channel tells, until the master closes it."""
        with WorkerChannel(folder, worker, incarnation) as channel:
            if self._pipeline is not None:
                return self._serve_overlapping(channel, self._pipeline)
            channel.serve(self.turn, self._try_to_save)

    def _serve_overlapping(self, channel: WorkerChannel, pipeline: TurnPipeline) -> None:
        def answer(command: Train, done: Future[Trained]) -> None:
            error = done.exception()
            channel.answer(done.result() if error is None else refusal(command, error))

        for command in channel.commands():
            if isinstance(command, Train):
                pipeline.submit(command).add_done_callback(partial(answer, command))
            else:
                channel.answer(self._by_engine(self._try_to_save, command))
        pipeline.drain()

    def _try_to_save(self, command: SaveState) -> StateSaved:
        try:
            return self._save_state(command)
        except Exception as error:
            place = (command.worker, command.incarnation, command.version)
            return StateSaved(*place, problem=first_line(error))

    def save_state(self, command: SaveState) -> StateSaved:
        """Lay the solver's history into the store, for a checkpoint, and say how far the data was read."""
        return self._by_engine(self._save_state, command)

    def _save_state(self, command: SaveState) -> StateSaved:
        from speedo.exchange.transfer import put_history
        from speedo.run.open_store import run_store

        worker, place, settings = self._worker, self._place, self._settings
        history = worker.engine.history()
        if self._pipeline is None:
            put_history(worker.store, settings.keyspace, place.worker, command.version, history)
        else:  # its stores are other threads'
            with closing(run_store(place.redis_url, settings)) as store:
                put_history(store, settings.keyspace, place.worker, command.version, history)
        batches = place.skip + worker.samples // place.batch_size
        return StateSaved(
            place.worker,
            place.incarnation,
            command.version,
            batches,
            place.rank,
            place.count,
            place.batch_size,
        )


def _take_over(engine: Engine, store: Store, settings: RunSettings, place: Assignment) -> str:
    """Load the history that this slot had in the checkpoint; why it could not be, if so: momentum begins at 0 then."""
    from speedo.exchange.transfer import take_history

    assert place.history is not None
    try:
        history = take_history(store, settings.keyspace, place.worker, place.history)
        engine.load_history(history)
    except (MissingKeyError, PayloadError) as error:
        return f"its solver history of the checkpoint is lost, so momentum begins at 0: {error}"
    return ""


def scratch_of(folder: Path, place: Assignment, epoch: int) -> Path:
    """The folder of one process for its small files, in that of its host, which removes it after a death."""
    return folder / f"worker-{epoch}.{place.worker}.{place.incarnation}"
