"""Builds the parts of a run: engine, center, coordinator, driver, log and checkpoint writer; each gets what it uses.

The cluster that carries out commands is an argument: Ray actors, or workers in a test's own process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from speedo.config.run_config import RunConfig
from speedo.engines.base import ModelEngine
from speedo.engines.chance import loss_of_guessing
from speedo.engines.make import make_engine, prepare_process
from speedo.engines.solver_update import Recipe, multipliers
from speedo.engines.update_rules import SolverFields
from speedo.errors import CheckpointError, TrainingStopped
from speedo.master.center import Center, RunCenter, squared_norm
from speedo.master.checkpoint_writer import CheckpointWriter
from speedo.master.coordinator import Coordinator
from speedo.master.divergence import DivergenceWatch
from speedo.master.driver import Cluster, Driver, Limits
from speedo.master.observers import Observers
from speedo.master.plan import Plan
from speedo.master.served_center import ServedCenter
from speedo.master.server_requests import Servers
from speedo.master.slots import Roster
from speedo.master.stopping import Stopping, StopRules
from speedo.monitor.status import StatusBoard
from speedo.redaction import hide_secrets
from speedo.remote.fetch import now_ours
from speedo.remote.uris import uri_of
from speedo.run.best_model import BestFile
from speedo.run.caffe_snapshot import CaffeSnapshot
from speedo.run.exports import make_exports
from speedo.run.outputs import ModelFiles
from speedo.run.remote_inputs import located_weights
from speedo.run.settings import RunSettings
from speedo.run.snapshot_files import SnapshotFiles
from speedo.run.training import Training
from speedo.run_dir.checkpoint_file import Checkpoint, Progress
from speedo.run_dir.directory import CHECKPOINTS, CONFIG, METRICS, write_config
from speedo.run_dir.fence import Fence
from speedo.run_dir.metrics_log import MetricsLog
from speedo.sgd_modes.registry import Adjust, Update, make_strategy, needs_update
from speedo.sgd_modes.rules import by_servers
from speedo.solver import SolverSpec, solver_for_server
from speedo.solver.proto import caffe_proto, parse_text
from speedo.storage.base import Store
from speedo.vectors.vector import Kind, Layout, Vector

TESTS_WAIT = 5  # times the timeout, for nets and data that a tester opens before its first batch
TICKETS_OF_AN_EPOCH = 1_000_000_000  # a resumed run gives out no ticket that the log has already


def build_training(
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
    servers: Servers | None = None,
) -> Training:
    """`scratch` is the folder for the engine's small files; without it the temporary folder.

    `open_store` opens another connection, for the checkpoint thread; without it there are no checkpoints. With
    `servers` these have the center, and `store` only the workers' histories.

    Raises `CheckpointError` if `resume` is not of this net.
    """
    spec = settings.spec
    prepare_process(settings.engine)
    engine = make_engine(
        settings.engine.on_cpu(),
        solver_for_server(spec, seed=settings.seed, scratch=scratch),
        lr_policy=spec.lr_policy,
        folder=spec.folder,
        python_layers=spec.python_layers,
        scratch=scratch,
    )
    if isinstance(resume, CaffeSnapshot):
        resume = resume.as_checkpoint(engine, settings, config.mode)
    fence = Fence(run_dir, settings.epoch, time.monotonic)
    own = settings.data_share == "own"  # then the hosts say how many records there are
    board = StatusBoard(config.mode, spec.max_iter, spec.batch, None if own else records)
    first = _first_center(engine, spec, resume, located_weights(config.weights))
    version = resume.counters.version if resume else 0
    center: RunCenter
    if servers is None:
        center = Center(
            settings.keyspace,
            first,
            engine.layout,
            store,
            version=version,
            epoch=settings.epoch,
            fence=fence.check,
            clock=time.monotonic,
            compression=settings.compression,
        )
    else:
        solver = _recipe(spec, engine.layout) if needs_update(config) else None
        former = resume.master_history if resume is not None else b""
        center = ServedCenter(
            settings.keyspace,
            first,
            engine.layout,
            servers,
            version=version,
            epoch=settings.epoch,
            fence=fence.check,
            compression=settings.compression,
            note=board.notice,
            solver=solver,
            first_history=solver.read_history(former) if solver is not None and former else None,
            clock=time.monotonic,
        )
    log = _run_log(run_dir, board, resumed=settings.epoch > 0)
    files = ModelFiles(run_dir, engine, center)
    coordinator = _coordinator(
        config,
        settings,
        resume,
        _solver_update(engine) if servers is None else by_servers,
        lambda own: engine.adjust(own.lr, own.momentum, own.weight_decay, 1),
    )
    if isinstance(center, ServedCenter):
        center.rule = lambda: coordinator.strategy.rule
    if resume is not None:
        if needs_update(config) and not resume.master_history:
            board.notice(
                "warning: the checkpoint has no history of the update by gradients: it begins at 0"
            )
        board.resume(resume.counters)
        log.resume(settings.epoch, resume.counters, time.monotonic())
    seconds_before = resume.counters.seconds if resume else 0.0
    roster = Roster(
        settings.batch_sizes,
        spec.iter_size,
        resumed=dict(resume.workers) if resume else {},
        version=coordinator.version,
        share=settings.data_share,
        records=records,
    )
    own_history = _history_of(center, engine) if needs_update(config) else bytes

    def server_history() -> bytes:
        """That of the update by gradients, where the mode makes one now."""
        return own_history() if coordinator.strategy.rule.payload is Kind.GRADIENT else b""

    keeper = None
    if open_store is not None:
        keeper = CheckpointWriter(
            run_dir / CHECKPOINTS,
            settings.run,
            settings.keyspace,
            config.mode,
            center,
            open_store,
            fence.require,
            config.checkpoint_interval,
            settings.epoch,
            seconds_before,
            own_history,
            lambda: board.dropped,
            roster.data_of,
        )
    best = None
    if config.keep_best and spec.has_test:
        best = BestFile(run_dir, engine, center, fence.require, board.notice)
    counters = resume.counters if resume else None
    exports, copies = make_exports(
        config, settings, run_dir, center, board, counters, time.monotonic
    )
    watch = DivergenceWatch(config.mode, config.workers, coordinator.strategy.rule.payload)

    def saw_loss(loss: float, samples: int) -> str | None:
        reason = watch.saw(loss, samples)
        return reason if config.stop_on_divergence else None

    driver = Driver(
        coordinator,
        center,
        cluster,
        Observers(*(one for one in (board, log, exports, copies) if one is not None)),
        time.monotonic,
        Limits(
            start_s=config.timeout,
            join_s=config.seconds_to_join,
            turn_s=config.timeout,
            test_s=TESTS_WAIT * config.timeout,
        ),
        has_tester=spec.has_test,
        snapshots=SnapshotFiles(run_dir, spec, engine, center, fence.require, server_history),
        checkpoints=keeper,
        diverged=saw_loss,
        outages=lambda: center.outages,
        together=log.together,
        best=best,
        final_test=config.final_test,
        seconds_before=seconds_before,
    )
    values = config_for_people(config, spec.path, settings.seed)
    try:
        write_config(run_dir, values)
        now_ours(run_dir)
    except OSError as error:  # tried again at the end
        board.notice(f"warning: no {CONFIG} in {run_dir}: {error.strerror}")
    histories = dict(resume.histories) if resume else {}
    return Training(
        settings, store, driver, files, roster, board, log, fence, keeper, histories, seconds_before, values,
        exports, best, watch, _loss_of_guessing(engine, spec),
    )  # fmt: skip


def config_for_people(config: RunConfig, solver: Path, seed: int) -> dict[str, Any]:
    """The options for `--config` that repeat this run in another directory, with `***` for secrets."""
    values = config.model_dump(
        mode="json", exclude_none=True, exclude={"redis", "run_dir", "resume"}
    )
    values = {
        name: hide_secrets(uri_of(one) or one) if isinstance(one, str) else one
        for name, one in values.items()
    }
    return {**values, "solver": str(solver), "seed": seed}


def _first_center(
    engine: ModelEngine, spec: SolverSpec, resume: Checkpoint | None, weights: Sequence[Path]
) -> Vector:
    """The initial weights: the solver's own, those of `--weights`, or those of a checkpoint."""
    layout = engine.layout
    vector = layout.zeros()
    if resume is None:
        for file in weights:
            engine.copy_from(file)
        engine.read_weights(vector)
        return vector
    if resume.counters.layout != layout.digest or resume.center.shape != vector.shape:
        raise CheckpointError(
            "the checkpoint is of another net: its parameter blobs differ from those of "
            f"{spec.path}; resume with the net that the run was begun with"
        )
    if resume.master_history:  # checked here, also where servers go on with it
        engine.load_history(resume.master_history)
    return resume.center


def _coordinator(
    config: RunConfig,
    settings: RunSettings,
    resume: Checkpoint | None,
    update: Update,
    adjust: Adjust,
) -> Coordinator:
    spec = settings.spec
    test_interval = spec.test_interval if spec.has_test and config.test_interval != 0 else 0
    plan = Plan(
        batch=spec.batch,
        max_iter=spec.max_iter,
        workers=settings.workers,
        min_workers=config.min_workers,
        test_interval=test_interval,
        test_initialization=spec.test_initialization and test_interval > 0,
        snapshot=spec.snapshot,
        teams=settings.teams,
        # What is compressed loses some at each report, so it is reported as often as without a team.
        stretch_s=config.stretch if settings.compression.payload == "none" else 0.0,
    )
    samples = resume.counters.samples if resume else 0
    progress = resume.counters.progress if resume else None
    turns = progress.turns if progress else None
    return Coordinator(
        make_strategy(
            config,
            spec.batch,
            update if needs_update(config) else None,
            samples=samples,
            place=None if progress is None else (progress.phase, progress.phase_samples),
            adjust=adjust,
            batch_size=spec.batch_size,
            turns=None if turns is None else astuple(turns),
        ),
        plan,
        version=resume.counters.version if resume else 0,
        samples=samples,
        first_ticket=settings.epoch * TICKETS_OF_AN_EPOCH + 1,
        received=resume.counters.received if resume else 0,
        stopping=_stopping(config, progress),
    )


def _stopping(config: RunConfig, progress: Progress | None) -> Stopping:
    rules = StopRules(
        config.max_seconds,
        config.target or "",
        config.patience or 0,
        config.best_by or "",
        config.keep_best,
    )
    if progress is None:
        return Stopping(rules)
    return Stopping(rules, progress.best, progress.since_best, progress.best_iteration)


def _solver_update(engine: ModelEngine) -> Update:
    """The solver's own update of the center by a raw gradient."""

    def update(gradient: Vector, center: Vector, iteration: int) -> None:
        engine.load_weights(center)
        engine.set_iteration(iteration)
        engine.apply_gradient(gradient)
        updated = np.empty_like(center)
        engine.read_weights(updated)
        if not np.isfinite(squared_norm(updated)):
            raise TrainingStopped(
                f"the solver's update at iteration {iteration} is not finite: training has diverged; lower --lr"
            )
        np.copyto(center, updated)

    return update


def _loss_of_guessing(engine: ModelEngine, spec: SolverSpec) -> float | None:
    parameter = parse_text(spec.text, caffe_proto().SolverParameter())
    return loss_of_guessing(parameter.train_net_param, engine.shapes())


def _recipe(spec: SolverSpec, layout: Layout) -> Recipe:
    """What servers make the solver's update of their ranges from."""
    parameter = parse_text(spec.text, caffe_proto().SolverParameter())
    own = multipliers(parameter.train_net_param, layout)
    return Recipe(SolverFields.from_solver(parameter), layout, own, spec.lr_policy)


def _history_of(center: RunCenter, engine: ModelEngine) -> Callable[[], bytes]:
    """Who has the history of the solver whose update makes the center."""
    return center.history if isinstance(center, ServedCenter) else engine.history


def _run_log(run_dir: Path, board: StatusBoard, *, resumed: bool) -> MetricsLog:
    try:
        return MetricsLog(run_dir, time.monotonic(), resumed=resumed, tell=board.trouble_with_log)
    except OSError as error:
        what = f"{run_dir / METRICS} cannot be copied to continue"
        raise CheckpointError(f"{what}: {error.strerror}; make room or make it writable") from None
