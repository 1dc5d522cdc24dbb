"""The worker actor: one process with one Caffe solver, doing turns as it is told."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from speedo import failpoints
from speedo.actors.channel import WorkerChannel, first_line, refusal
from speedo.engines.base import Engine
from speedo.engines.fatal import capture_stderr
from speedo.errors import MissingKeyError, PayloadError, SpeedoError
from speedo.messages import SaveState, StateSaved, Train, Trained
from speedo.roster import Assignment
from speedo.settings import RunSettings
from speedo.storage.base import Store


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker that can train; `layout` is the digest of its parameters' layout."""

    process: int
    samples_per_step: int
    layout: int
    near: bool


class WorkerActor:
    """A thin shell around `speedo.worker.Worker`; one thread, because Caffe's settings belong to threads."""

    def warm_up(self) -> None:
        """Load what every worker needs, before it is known which one this will be."""
        from speedo.engines.caffe_import import load_caffe, prepare_environment

        prepare_environment(1)
        with suppress(SpeedoError):  # `start` will say so
            load_caffe()

    def process(self) -> int:
        return os.getpid()

    def start(
        self, settings: RunSettings, place: Assignment, log: Path, data_root: Path | None
    ) -> Ready:
        """Build the solver and connect to the store."""
        capture_stderr(log)
        failpoints.i_am_worker(place.worker)
        faulthandler.enable()  # a segmentation fault leaves its name in the log
        self._settings, self._data_root = settings, data_root
        self._scratch = scratch_of(log, place, settings.epoch)
        self._scratch.mkdir(exist_ok=True)
        return self._ready(self._begin(place))

    def _ready(self, engine: Engine) -> Ready:
        from speedo.actors.stores import is_near

        near = is_near(self._settings.near)
        return Ready(os.getpid(), engine.samples_per_step, engine.layout.digest, near)

    def rebuild(self, place: Assignment) -> Ready:
        """Take another place with the engine built anew, all but its history."""
        history = self._worker.engine.history()
        self._worker.engine.close()  # before the next is built: memory may not hold both
        self._worker.store.close()
        engine = self._begin(place)
        engine.load_history(history)
        return self._ready(engine)

    def _begin(self, place: Assignment) -> Engine:
        from speedo.actors.stores import run_store
        from speedo.engines.pycaffe import PycaffeEngine
        from speedo.solver import Draws, solver_for_worker
        from speedo.worker import Worker

        settings = self._settings
        spec = settings.spec.on_node(self._data_root)
        text = solver_for_worker(
            spec,
            rank=place.rank,
            count=place.count,
            batch_size=place.batch_size,
            seed=settings.seed + 1 + place.worker,
            scratch=self._scratch,
            draws=Draws.NONE,
        )
        engine = PycaffeEngine(
            text,
            lr_policy=spec.lr_policy,
            rank=place.rank,
            count=place.count,
            folder=spec.folder,
            python_layers=spec.python_layers,
            scratch=self._scratch,
        )
        engine.advance(place.skip)
        store = run_store(place.redis_url, settings)
        if place.history is not None:
            _take_over(engine, store, settings.keyspace, place)
        self._worker = Worker(
            settings.keyspace,
            place.worker,
            place.incarnation,
            engine,
            store,
            time.monotonic,
            settings.epoch,
            compression=settings.compression,
        )
        self._place = place
        return engine

    def turn(self, command: Train) -> Trained:
        return self._worker.turn(command)

    def serve(self, folder: str, worker: int, incarnation: int) -> None:
        """Do turns as the channel tells, until the master closes it."""
        with WorkerChannel(folder, worker, incarnation) as channel:
            for command in channel.commands():
                if isinstance(command, Train):
                    try:
                        channel.answer(self.turn(command))
                    except Exception as error:
                        channel.answer(refusal(command, error))
                else:
                    channel.answer(self._try_to_save(command))

    def _try_to_save(self, command: SaveState) -> StateSaved:
        try:
            return self.save_state(command)
        except Exception as error:
            place = (command.worker, command.incarnation, command.version)
            return StateSaved(*place, problem=first_line(error))

    def save_state(self, command: SaveState) -> StateSaved:
        """Lay the solver's history into the store, for a checkpoint, and say how far the data was read."""
        from speedo.history_transfer import put_history

        worker, place = self._worker, self._place
        history = worker.engine.history()
        put_history(worker.store, self._settings.keyspace, place.worker, command.version, history)
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


def _take_over(engine: Engine, store: Store, keyspace: str, place: Assignment) -> None:
    """Load the history that this slot had in the checkpoint; without it, which is told, momentum begins at 0."""
    from speedo.history_transfer import take_history

    assert place.history is not None
    try:
        engine.load_history(take_history(store, keyspace, place.worker, place.history))
    except (MissingKeyError, PayloadError) as error:
        print(f"the solver history of the checkpoint is lost: {error}", file=sys.stderr)


def scratch_of(log: Path, place: Assignment, epoch: int) -> Path:
    """The folder of one process for its small files; its host removes it after a death."""
    return log.parent / f"speedo-engine-{epoch}.{place.worker}.{place.incarnation}"
