"""One run put together: engine, center, coordinator, driver, log; whoever carries the commands out is given.

The master actor is a thin shell around `Training`; so is any test that wants the real parts without Ray.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import speedo
from speedo import runlog
from speedo.center import Center, is_finite
from speedo.config import RunConfig
from speedo.coordinator import Coordinator, Plan
from speedo.driver import Cluster, Driver, Limits, Observer, Outcome
from speedo.engines.pycaffe import PycaffeEngine
from speedo.errors import EngineError, TrainingStopped
from speedo.messages import Action, Event
from speedo.sgd_modes.registry import make_strategy, needs_update
from speedo.solver import SolverSpec, solver_for_server, split_batch
from speedo.status import Status, StatusBoard
from speedo.storage import keys
from speedo.storage.base import Store
from speedo.weights import Vector


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What every node needs to know of a run. `redis_url` holds the password: keep it out of logs."""

    run: str
    version: str
    redis_url: str
    spec: SolverSpec
    workers: int
    batch_sizes: tuple[int, ...]
    seed: int
    epoch: int
    timeout_s: float

    @classmethod
    def make(cls, config: RunConfig, spec: SolverSpec, run: str, redis_url: str) -> RunSettings:
        """`batch_sizes` has a `batch_size` per slot: a share of the solver's, or the whole of it."""
        if config.splits_batch:
            batch_sizes = split_batch(spec.batch_size, config.workers)
        else:
            batch_sizes = (spec.batch_size,) * config.workers
        seed = spec.random_seed if spec.random_seed >= 0 else int(run[:7], 16)
        return cls(
            run,
            speedo.__version__,
            redis_url,
            spec,
            config.workers,
            batch_sizes,
            seed,
            0,
            config.timeout,
        )


@dataclass(frozen=True, slots=True)
class Assignment:
    """A worker's place: its slot, how often that slot was taken, and its batch."""

    worker: int
    incarnation: int
    rank: int
    batch_size: int


class Roster:
    """Who holds which slot; a worker that comes takes the lowest free one."""

    def __init__(self, batch_sizes: tuple[int, ...]) -> None:
        self._batch_sizes = batch_sizes
        self._incarnations: dict[int, int] = {}
        self._taken: set[int] = set()

    def assign(self) -> Assignment:
        """A place for one more worker; beyond the expected number shards are shared."""
        worker = next(slot for slot in range(len(self._taken) + 1) if slot not in self._taken)
        self._taken.add(worker)
        self._incarnations[worker] = self._incarnations.get(worker, 0) + 1
        rank = worker % len(self._batch_sizes)
        return Assignment(worker, self._incarnations[worker], rank, self._batch_sizes[rank])

    def release(self, worker: int, incarnation: int) -> None:
        if self._incarnations.get(worker) == incarnation:
            self._taken.discard(worker)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run came to. `accuracy` is the test net's, of the very weights in `model`; None without one.

    `images_per_s` counts samples merged over the seconds from the first turn to the last merge.
    """

    mode: str
    workers: int
    complete: bool
    reason: str
    iteration: int
    version: int
    accuracy: float | None
    metrics: Mapping[str, float]
    test_problem: str
    images_per_s: float
    seconds: float
    samples: int
    dropped: Mapping[str, int]
    model: str
    run_dir: str


class _Observers:
    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def saw(self, event: Event, now: float) -> None:
        for observer in self._observers:
            observer.saw(event, now)

    def did(self, action: Action, now: float) -> None:
        for observer in self._observers:
            observer.did(action, now)


class Training:
    """A run from its first weights to its model; `run` blocks, `status` may be asked from other threads."""

    def __init__(
        self,
        config: RunConfig,
        settings: RunSettings,
        run_dir: Path,
        store: Store,
        cluster: Cluster,
        records: int | None,
    ) -> None:
        spec = settings.spec
        self.config, self.settings, self.run_dir = config, settings, run_dir
        self.roster = Roster(settings.batch_sizes)
        self._engine = PycaffeEngine(
            solver_for_server(spec, seed=settings.seed, scratch=run_dir / "logs"),
            lr_policy=spec.lr_policy,
            folder=spec.folder,
            scratch=run_dir / "logs",
        )
        if config.weights is not None:
            self._engine.copy_from(config.weights)
        self.layout = self._engine.layout
        vector = self.layout.zeros()
        self._engine.read_weights(vector)
        self.center = Center(settings.run, vector, self.layout, store, epoch=settings.epoch)
        strategy = make_strategy(config, spec.batch, self._update if needs_update(config) else None)
        test_interval = spec.test_interval if spec.has_test and config.test_interval != 0 else 0
        plan = Plan(
            batch=spec.batch,
            max_iter=spec.max_iter,
            workers=config.workers,
            min_workers=config.min_workers,
            test_interval=test_interval,
            test_initialization=spec.test_initialization and test_interval > 0,
            snapshot=spec.snapshot,
        )
        self.board = StatusBoard(config.mode, spec.max_iter, spec.batch, records)
        self._log = runlog.MetricsLog(run_dir, time.monotonic())
        self._driver = Driver(
            Coordinator(strategy, plan),
            self.center,
            cluster,
            _Observers(self.board, self._log),
            time.monotonic,
            Limits(start_s=config.timeout, join_s=config.seconds_to_join, turn_s=config.timeout),
            has_tester=spec.has_test,
            snapshot=self._snapshot,
        )
        self._store = store
        runlog.write_config(run_dir, _for_people(config, spec, settings.seed))

    def run(self) -> RunResult:
        """Train, test the last version, export it, and write the result. Store failures propagate."""
        try:
            outcome = self._driver.run()
            if not outcome.complete and outcome.samples == 0:
                raise TrainingStopped(f"nothing was trained: {outcome.reason}")
            model = self.run_dir / runlog.MODEL
            self._export(model)
            result = self._result(outcome, model)
            runlog.write_result(self.run_dir, result_fields(result))
            return result
        finally:
            self.board.state, self.board.over = "finished", True
            self._log.close()

    def clean_store(self) -> None:
        """Remove everything of this run from the store; it may be a server of the user's."""
        self._store.delete(*self._store.keys(keys.prefix(self.settings.run)))

    def status(self) -> Status:
        return self.board.status(time.monotonic())

    def close(self) -> None:
        self._engine.close()

    def _result(self, outcome: Outcome, model: Path) -> RunResult:
        seconds = outcome.seconds
        return RunResult(
            self.config.mode,
            self.config.workers,
            outcome.complete,
            outcome.reason,
            outcome.iteration,
            outcome.version,
            accuracy_of(outcome.metrics),
            dict(outcome.metrics),
            outcome.test_problem,
            outcome.samples / seconds if seconds > 0 else 0.0,
            seconds,
            outcome.samples,
            dict(self.board.dropped),
            str(model),
            str(self.run_dir),
        )

    def _export(self, path: Path) -> None:
        self._engine.load_weights(self.center.vector)
        self._engine.save(path)

    def _snapshot(self, version: int, iteration: int) -> None:
        """Named as Caffe names its own; a snapshot that cannot be written does not end the run."""
        prefix = Path(
            self.settings.spec.snapshot_prefix or self.settings.spec.net_name or "model"
        ).name
        try:
            self._export(self.run_dir / f"{prefix}_iter_{iteration}.caffemodel")
        except EngineError as error:
            self.board.state = f"no snapshot at iteration {iteration}: {error}"

    def _update(self, gradient: Vector, center: Vector, iteration: int) -> None:
        """The solver's own update of the center by a raw gradient."""
        self._engine.load_weights(center)
        self._engine.set_iteration(iteration)
        self._engine.apply_gradient(gradient)
        updated = np.empty_like(center)
        self._engine.read_weights(updated)
        if not is_finite(updated):
            raise TrainingStopped(
                f"the solver's update at iteration {iteration} is not finite: training has diverged; lower --lr"
            )
        np.copyto(center, updated)


def accuracy_of(metrics: Mapping[str, float]) -> float | None:
    """The metric that people mean by accuracy: the one of that name, or the last that contains it."""
    if "accuracy" in metrics:
        return metrics["accuracy"]
    named = [value for name, value in metrics.items() if "acc" in name.lower()]
    return named[-1] if named else None


def result_fields(result: RunResult) -> dict[str, Any]:
    """A result as plain data, in the order in which `result.json` has it."""
    return {name: getattr(result, name) for name in result.__slots__}


def _for_people(config: RunConfig, spec: SolverSpec, seed: int) -> dict[str, Any]:
    """What `--config` takes to do the same again, in a directory of its own; without secrets."""
    values = config.model_dump(mode="json", exclude_none=True, exclude={"redis", "run_dir"})
    return {**values, "solver": str(spec.path), "seed": seed}
