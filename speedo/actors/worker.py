"""The worker actor: one process with one Caffe solver, doing turns as it is told."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from speedo.engines.fatal import capture_stderr
from speedo.messages import Train, Trained
from speedo.training import Assignment, RunSettings


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker that can train; `layout` is the digest of its parameters' layout."""

    process: int
    samples_per_step: int
    layout: int


class WorkerActor:
    """A thin shell around `speedo.worker.Worker`; one thread, because Caffe's settings belong to threads."""

    def __init__(
        self, settings: RunSettings, place: Assignment, log: Path, data_root: Path | None
    ) -> None:
        capture_stderr(log)
        self._settings, self._place = settings, place
        self._log, self._data_root = log, data_root

    def process(self) -> int:
        return os.getpid()

    def start(self) -> Ready:
        """Build the solver and connect to the store."""
        from speedo.engines.pycaffe import PycaffeEngine
        from speedo.solver import solver_for_worker
        from speedo.storage.redis_store import RedisStore
        from speedo.worker import Worker

        settings, place = self._settings, self._place
        spec = settings.spec.on_node(self._data_root)
        scratch = self._log.parent
        text = solver_for_worker(
            spec,
            rank=place.rank,
            count=settings.workers,
            batch_size=place.batch_size,
            seed=settings.seed + 1 + place.worker,
            scratch=scratch,
        )
        engine = PycaffeEngine(
            text,
            lr_policy=spec.lr_policy,
            rank=place.rank,
            count=settings.workers,
            folder=spec.folder,
            scratch=scratch,
        )
        self._worker = Worker(
            settings.run,
            place.worker,
            place.incarnation,
            engine,
            RedisStore(settings.redis_url),
            time.monotonic,
            settings.epoch,
        )
        return Ready(os.getpid(), engine.samples_per_step, engine.layout.digest)

    def turn(self, command: Train) -> Trained:
        return self._worker.turn(command)
