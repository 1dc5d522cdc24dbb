"""One run put together: engine, center, coordinator, driver, log; whoever carries the commands out is given.

The master actor is a thin shell around `Training`; so is any test that wants the real parts without Ray.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from speedo.config.run_config import RunConfig
from speedo.engines.pycaffe import PycaffeEngine
from speedo.errors import CheckpointError, EngineError, FencedError, StoreError, TrainingStopped
from speedo.master.center import Center, squared_norm
from speedo.master.checkpoint_writer import CheckpointKeeper
from speedo.master.coordinator import Coordinator, Plan
from speedo.master.divergence import DivergenceWatch
from speedo.master.driver import Cluster, Driver, Limits, Outcome
from speedo.master.roles import Observers
from speedo.master.slots import Roster
from speedo.messages import Event
from speedo.monitor.status import Status, StatusBoard
from speedo.run.caffe_snapshot import CaffeSnapshot
from speedo.run.outputs import config_for_people, hand_over
from speedo.run.result import RunResult, accuracy_of
from speedo.run.settings import RunSettings
from speedo.run_dir.checkpoint_file import Checkpoint
from speedo.run_dir.directory import CHECKPOINTS, CONFIG, METRICS, MODEL, write_config
from speedo.run_dir.fence import Fence
from speedo.run_dir.metrics_log import MetricsLog
from speedo.sgd_modes.registry import make_strategy, needs_update
from speedo.solver import solver_for_server
from speedo.storage import keys
from speedo.storage.base import Store
from speedo.vectors.history_transfer import put_history
from speedo.vectors.vector import Vector

TICKETS_OF_AN_EPOCH = 1_000_000_000  # a resumed run gives out no ticket that the log has already


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
        *,
        scratch: Path | None = None,
        resume: Checkpoint | CaffeSnapshot | None = None,
        open_store: Callable[[], Store] | None = None,
    ) -> None:
        """`scratch` takes the engine's small files; without it the temporary folder does.

        `open_store` makes a further connection, for a thread of its own; without it there are no checkpoints.

        Raises `CheckpointError` if `resume` is not of this net.
        """
        spec = settings.spec
        self.config, self.settings, self.run_dir = config, settings, run_dir
        self._engine = PycaffeEngine(
            solver_for_server(spec, seed=settings.seed, scratch=scratch),
            lr_policy=spec.lr_policy,
            folder=spec.folder,
            python_layers=spec.python_layers,
            scratch=scratch,
        )
        self.layout = self._engine.layout
        if isinstance(resume, CaffeSnapshot):
            resume = resume.as_checkpoint(self._engine, settings, config.mode)
        center = self._first_center(resume)
        self._fence = Fence(run_dir, settings.epoch, time.monotonic)
        self.center = Center(
            settings.keyspace,
            center,
            self.layout,
            store,
            version=resume.counters.version if resume else 0,
            epoch=settings.epoch,
            fence=self._fence.check,
            clock=time.monotonic,
            compression=settings.compression,
        )
        self.board = StatusBoard(config.mode, spec.max_iter, spec.batch, records)
        self._log = _run_log(run_dir, self.board, resumed=settings.epoch > 0)
        self._seconds_before = 0.0
        coordinator = self._coordinator(resume)
        if resume is not None:
            self._seconds_before = resume.counters.seconds
            self.board.resume(resume.counters)
            self._log.resume(settings.epoch, resume.counters, time.monotonic())
        self.roster = Roster(
            settings.batch_sizes,
            spec.iter_size,
            resumed=dict(resume.workers) if resume else {},
            version=coordinator.version,
        )
        keeper = self._keeper(open_store) if open_store is not None else None
        payload = coordinator.strategy.rule.payload
        watch = DivergenceWatch(config.mode, config.workers, payload)
        self._driver = Driver(
            coordinator,
            self.center,
            cluster,
            Observers(self.board, self._log),
            time.monotonic,
            Limits(start_s=config.timeout, join_s=config.seconds_to_join, turn_s=config.timeout),
            has_tester=spec.has_test,
            snapshot=self._snapshot,
            checkpoints=keeper,
            diverged=watch.saw if config.stop_on_divergence else lambda loss, samples: None,
            outages=lambda: int(getattr(store, "outages", 0)),
        )
        self._keeper_or_none, self._store = keeper, store
        self.histories = dict(resume.histories) if resume else {}  # by slot, of the checkpoint
        self._config_values = config_for_people(config, spec.path, settings.seed)
        try:
            write_config(run_dir, self._config_values)
        except OSError as error:  # tried again at the end
            self.board.notice(f"warning: no {CONFIG} in {run_dir}: {error.strerror}")

    def run(self) -> RunResult:
        """Train, test the last version, export it, and write the result; elsewhere if `run_dir` has no room.

        A store that stays away ends the run with `StoreError`, after a checkpoint.
        """
        try:
            self._give_histories_back()
            outcome = self._driver.run()
            if not outcome.complete and outcome.samples == 0:
                raise TrainingStopped(f"nothing was trained: {outcome.reason}")
            self._fence.require()
            last = self.settings.spec.last_snapshot(outcome.iteration)
            result, config = self._result(outcome), self._config_values
            return hand_over(result, self.run_dir, self._log, config, self._export, last)
        except FencedError:
            self._log.disown()
            raise
        except StoreError as error:
            raise StoreError(f"{error}; {self._keep_what_there_is()}") from None
        finally:
            self.board.state, self.board.over = "finished", True
            if self._keeper_or_none is not None:
                self._keeper_or_none.close()
            self._log.close()

    def _first_center(self, resume: Checkpoint | None) -> Vector:
        """The weights to begin with: the solver's own, those of `--weights`, or those of a checkpoint."""
        vector = self.layout.zeros()
        if resume is None:
            if self.config.weights is not None:
                self._engine.copy_from(self.config.weights)
            self._engine.read_weights(vector)
            return vector
        if resume.counters.layout != self.layout.digest or resume.center.shape != vector.shape:
            raise CheckpointError(
                "the checkpoint is of another net: its parameter blobs differ from those of "
                f"{self.settings.spec.path}; resume with the net that the run was begun with"
            )
        if resume.master_history:
            self._engine.load_history(resume.master_history)
        return resume.center

    def _coordinator(self, resume: Checkpoint | None) -> Coordinator:
        config, spec = self.config, self.settings.spec
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
        update = self._update if needs_update(config) else None
        samples = resume.counters.samples if resume else 0
        return Coordinator(
            make_strategy(config, spec.batch, update, samples=samples),
            plan,
            version=resume.counters.version if resume else 0,
            samples=samples,
            first_ticket=self.settings.epoch * TICKETS_OF_AN_EPOCH + 1,
            received=resume.counters.received if resume else 0,
        )

    def _keeper(self, open_store: Callable[[], Store]) -> CheckpointKeeper:
        return CheckpointKeeper(
            self.run_dir / CHECKPOINTS,
            self.settings.run,
            self.settings.keyspace,
            self.config.mode,
            self.center,
            open_store,
            self._fence.require,
            self.config.checkpoint_interval,
            self.settings.epoch,
            self._seconds_before,
            self._engine.history if needs_update(self.config) else bytes,
            lambda: self.board.dropped,
        )

    def _give_histories_back(self) -> None:
        """Lay the workers' histories where the workers of their slots look for them."""
        version = self.center.version
        for slot, history in self.histories.items():
            put_history(self._store, self.settings.keyspace, slot, version, history)

    def _keep_what_there_is(self) -> str:
        """After the loss of the store: a checkpoint of the center, and what to do with it."""
        driver, keeper = self._driver, self._keeper_or_none
        if keeper is None or driver.coordinator.samples == 0:
            return "nothing was trained"
        problem = keeper.keep_center(driver.coordinator, driver.seconds)
        if problem:
            return f"and {problem}"
        return (
            f"iteration {driver.coordinator.iteration} is kept: go on with --resume {self.run_dir}"
        )

    def clean_store(self) -> None:
        """Remove everything of this run from the store; it may be a server of the user's."""
        self._store.delete(*self._store.keys(keys.prefix(self.settings.run)))

    def tell(self, event: Event) -> None:
        """Tell the onlookers of something that holds the driver up; from the driver's own thread alone."""
        self._driver.tell(event)

    def status(self) -> Status:
        return self.board.status(time.monotonic())

    def close(self) -> None:
        self._engine.close()

    def _result(self, outcome: Outcome) -> RunResult:
        seconds = self._seconds_before + outcome.seconds
        untested = outcome.test_problem
        if self.settings.spec.has_test and not outcome.metrics:
            untested = untested or "the tester gave no answer"
        return RunResult(
            self.config.mode,
            self.config.workers,
            outcome.complete and not untested,  # the last test is part of the work
            untested if outcome.complete and untested else outcome.reason,
            outcome.iteration,
            outcome.version,
            accuracy_of(outcome.metrics),
            dict(outcome.metrics),
            untested,
            outcome.samples / seconds if seconds > 0 else 0.0,
            seconds,
            outcome.samples,
            dict(self.board.dropped),
            str(self.run_dir / MODEL),
            str(self.run_dir),
            self.board.results * self.center.payload_bytes,
            self.board.turns * self.center.center_bytes,
        )

    def _export(self, path: Path) -> None:
        self._engine.load_weights(self.center.vector)
        self._engine.save(path)

    def _snapshot(self, version: int, iteration: int) -> str:
        """Named as Caffe names its own; one that cannot be written is told, and does not end the run."""
        self._fence.require()
        try:
            self._export(self.run_dir / self.settings.spec.snapshot_name(iteration))
        except EngineError as error:
            self.board.notice(f"warning: no snapshot at iteration {iteration}: {error}")
            return str(error)
        return ""

    def _update(self, gradient: Vector, center: Vector, iteration: int) -> None:
        """The solver's own update of the center by a raw gradient."""
        self._engine.load_weights(center)
        self._engine.set_iteration(iteration)
        self._engine.apply_gradient(gradient)
        updated = np.empty_like(center)
        self._engine.read_weights(updated)
        if not np.isfinite(squared_norm(updated)):
            raise TrainingStopped(
                f"the solver's update at iteration {iteration} is not finite: training has diverged; lower --lr"
            )
        np.copyto(center, updated)


def _run_log(run_dir: Path, board: StatusBoard, *, resumed: bool) -> MetricsLog:
    try:
        return MetricsLog(run_dir, time.monotonic(), resumed=resumed, tell=board.trouble_with_log)
    except OSError as error:
        what = f"{run_dir / METRICS} cannot be copied to go on with"
        raise CheckpointError(f"{what}: {error.strerror}; make room or make it writable") from None
