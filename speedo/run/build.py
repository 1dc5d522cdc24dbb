"""Builds the training of a model: center, coordinator, driver, log and checkpoint writer; each gets what it uses.

The cluster that carries out commands is an argument: Ray actors, or workers in a test's own process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from speedo.data.remote.fetch import now_ours
from speedo.data.remote.uris import uri_of
from speedo.errors import CheckpointError, hide_secrets
from speedo.exchange.vector import Layout
from speedo.master.center import Center, RunCenter
from speedo.master.checkpoint_writer import CheckpointWriter
from speedo.master.cluster import Cluster
from speedo.master.coordinator import Coordinator
from speedo.master.divergence import DivergenceWatch
from speedo.master.driver import Driver, Limits
from speedo.master.journal import Journal, JournalFile, JournalInStore, JournalPlace
from speedo.master.kept_state import KeptState
from speedo.master.leases import Leases
from speedo.master.lost_records import LostRecords
from speedo.master.observers import Observers
from speedo.master.plan import MOST_STRETCH_S, Plan
from speedo.master.script_tests import ScriptTests
from speedo.master.servers.served_center import ServedCenter
from speedo.master.servers.server_requests import Servers
from speedo.master.speed_division import SpeedDivision
from speedo.master.stopping import Stopping, StopRules
from speedo.master.turn_records import TurnRecords
from speedo.messages import Kind
from speedo.run.config.run_config import RunConfig
from speedo.run.exchange_way import sums_over_hosts
from speedo.run.exports import make_exports
from speedo.run.run_parts import RunParts
from speedo.run.script_job import ScriptJob
from speedo.run.settings import RunSettings
from speedo.run.takeover import Takeover
from speedo.run.trained_model import TrainedModel
from speedo.run.training import Training
from speedo.run_dir.checkpoint_file import Checkpoint, TrainingProgress
from speedo.run_dir.directory import CHECKPOINTS, CONFIG, METRICS, write_config
from speedo.run_dir.metrics_log import MetricsLog
from speedo.sgd_modes.registry import Update, make_strategy, needs_update
from speedo.sgd_modes.rules import State, by_servers
from speedo.storage.base import Store
from speedo.watch.status import StatusBoard

PARTS_OF_RUN = 20  # the stretch under way is lost when the time of a run is over
TESTS_WAIT = 5  # times the timeout, for nets and data that a tester opens before its first batch
BACK_S = 5.0  # after the first worker of a former master, for the others
NEW_S = 30.0  # the same of new workers, which are still to start
SCRIPTS_GAIN = 0.2  # as by one of several workers that has two thirds of the others' speed
TICKETS_OF_AN_EPOCH = 1_000_000_000  # a resumed run gives out no ticket that the log has already


def build_training(
    config: RunConfig,
    parts: RunParts,
    model: TrainedModel,
    cluster: Cluster,
    *,
    open_store: Callable[[], Store] | None = None,
    servers: Servers | None = None,
    leases: Leases | None = None,
    tests: ScriptTests | None = None,
    script_state: Callable[[], bytes] = lambda: b"",
    taken_over: Takeover | None = None,
) -> Training:
    """`open_store` opens another connection, for the checkpoint thread; without it there are no checkpoints.

    With `servers` these have the center, and the store only the workers' histories. `leases` and
    `tests` are a script's, `script_state` is what a checkpoint has of it.
    """
    settings, run_dir, resume = parts.settings, parts.run_dir, model.resume
    fence, board = parts.fence, parts.board
    spec = settings.spec
    version = resume.counters.version if resume else 0
    kept = State.unpack(resume.rule_state, model.layout.size) if resume else State()
    update = model.update if servers is None else by_servers
    coordinator = _coordinator(config, settings, resume, update, taken_over, model.layout, leases)
    payload, stops = coordinator.strategy.rule.payload, config.stop_on_divergence
    watch = DivergenceWatch(config.mode, config.workers, payload, config.own, stops)
    center: RunCenter
    if servers is None:
        center = Center(
            settings.keyspace,
            model.first,
            model.layout,
            parts.store,
            version=version,
            epoch=settings.epoch,
            fence=fence.check,
            clock=time.monotonic,
            compression=settings.compression,
            state=kept,
            divergence=watch,
        )
    else:
        solver = model.recipe() if needs_update(config) else None
        former = resume.master_history if resume is not None else b""
        center = ServedCenter(
            settings.keyspace,
            model.first,
            model.layout,
            servers,
            version=version,
            epoch=settings.epoch,
            fence=fence.check,
            compression=settings.compression,
            rule=lambda: coordinator.strategy.rule,
            solver=solver,
            first_history=solver.read_history(former) if solver is not None and former else None,
            first_state=kept,
            clock=time.monotonic,
            divergence=watch,
        )
    log = _run_log(run_dir, board, resumed=settings.epoch > 0)
    if resume is not None:
        if needs_update(config) and not resume.master_history:
            board.notice(
                "warning: the checkpoint has no history of the update by gradients: it begins at 0"
            )
        board.resume(resume.counters)
        if taken_over is not None:
            parts.roster.seen(taken_over.incarnations)
            log.make_up(taken_over.merges, time.monotonic())
            board.turns, board.results = taken_over.exchanged
    if resume is not None or settings.epoch:
        why = settings.master_restarts[-1] if settings.master_restarts else ""
        begun = resume.counters if resume is not None else None
        undone = log.resume(settings.epoch, begun, time.monotonic(), why)
        if undone and why:
            to = (
                f"version {begun.version:,}, iteration {begun.iteration:,}"
                if begun
                else "the start"
            )
            board.notice(
                f"warning: {undone:,} merges are undone: the newest center is lost, and the run goes back to {to}"
            )
    seconds_before = resume.counters.seconds if resume else 0.0
    made_here = center if isinstance(center, ServedCenter) else model
    own_history = made_here.history if needs_update(config) else bytes

    def server_history() -> bytes:
        """That of the update by gradients, where the mode makes one now."""
        return own_history() if coordinator.strategy.rule.payload is Kind.GRADIENT else b""

    records: Leases | TurnRecords | LostRecords = leases or LostRecords()
    if config.data_share == "once" and parts.records:
        records = TurnRecords.of_run(
            parts.records,
            coordinator.plan.samples,
            coordinator.samples,
            resume.records if resume else b"",
            board.notice,
        )
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
            parts.roster.data_of,
            script_state,
            records.state if isinstance(records, TurnRecords) else bytes,
        )
    best = None
    if config.keep_best:
        best = model.best(run_dir, center, fence.require, board.notice)
    counters = resume.counters if resume else None
    exports, copies = make_exports(
        config, settings, run_dir, center, board, counters, time.monotonic
    )
    journal, place = None, _journal_place(parts)
    if keeper is not None and isinstance(center, Center) and place is not None:
        beside = KeptState(center, model.history_parts if needs_update(config) else tuple)
        journal = _journal(place, keeper, lambda: driver, beside, taken_over, board)
        center.publishing = partial(_publishing, beside, journal)
    driver = Driver(
        coordinator,
        center,
        cluster,
        Observers(
            *(one for one in (board, log, exports, copies, records, tests) if one is not None)
        ),
        time.monotonic,
        Limits(
            start_s=config.timeout,
            join_s=config.seconds_to_join,
            turn_s=config.timeout,
            test_s=TESTS_WAIT * config.timeout,
            return_s=BACK_S if taken_over is not None else NEW_S,
            least_turn_s=config.timeout if isinstance(spec, ScriptJob) else 0.0,
        ),
        has_tester=spec.has_test or tests is not None,
        snapshots=model.snapshots(run_dir, center, fence.require, server_history),
        checkpoints=keeper,
        divergence=watch,
        journal=journal,
        together=log.together,
        best=best,
        final_test=config.final_test,
        seconds_before=seconds_before,
        all_trained=(lambda: False) if leases is None else leases.all_trained,
        taken_over=taken_over is not None and taken_over.newest,
        tests_first=taken_over is not None and taken_over.tests and tests is None,
        with_records=records.with_records,
        divide=parts.roster.divide if leases is None else leases.divide,
    )
    values = config_for_people(config, spec.path, settings.seed)
    if isinstance(spec, ScriptJob):
        script = values.pop("solver")
        if spec.words:  # else each host brings its own
            values |= {"script": script, "script_folder": spec.folder}
            values["arguments"] = [hide_secrets(one) for one in spec.words[2:]]
    try:
        write_config(run_dir, values)
        now_ours(run_dir)
    except OSError as error:  # tried again at the end
        board.notice(f"warning: no {CONFIG} in {run_dir}: {error.strerror}")
    histories = dict(resume.histories) if resume else {}
    take_up = records.take_up if isinstance(records, TurnRecords) else lambda handed: True
    return Training(
        parts, driver, model, log, keeper, histories, seconds_before, values, exports, best, model.chance(), take_up
    )  # fmt: skip


def _journal_place(parts: RunParts) -> JournalPlace | None:
    if parts.master_fence is not None:
        return JournalInStore(parts.master_fence.guard)
    folder = parts.settings.near.folder

    def lost(error: OSError) -> None:  # no room: the run itself needs none there
        parts.board.notice(
            f"warning: no journal in {folder} ({error.strerror}): if the master dies, the run goes back to its newest "
            "checkpoint"
        )

    return JournalFile(Path(folder), parts.settings.epoch, lost) if folder else None


def _publishing(beside: KeptState, journal: Journal) -> None:
    """A version is about to be published."""
    beside.publishing()  # first: an entry of the journal may be written in one step with the version
    journal.publishing()


def _journal(
    place: JournalPlace,
    keeper: CheckpointWriter,
    driver: Callable[[], Driver],
    beside: KeptState,
    former: Takeover | None,
    board: StatusBoard,
) -> Journal:
    return Journal(
        place,
        lambda: keeper.counters(driver().coordinator, max(driver().seconds, 0.0)),
        whole=lambda: not beside,
        tests=lambda: bool(driver().tests),
        records=lambda: keeper.script_state() or keeper.records(),
        members=lambda: driver().coordinator.expected,
        exchanged=lambda: (board.turns, board.results),
        merged={} if former is None else former.merged,
        incarnations={} if former is None else former.incarnations,
    )


def config_for_people(config: RunConfig, solver: Path, seed: int) -> dict[str, Any]:
    """The options for `--config` that repeat this run in another directory, with `***` for secrets."""
    left_out = {"redis", "run_dir", "resume", "script", "script_folder", "code_from"}
    values = config.model_dump(mode="json", exclude_none=True, exclude=left_out)
    values |= values.pop("foreign")
    for phase in values["phases"]:
        phase |= phase.pop("foreign")
        phase.pop("code_from")
    values = {
        name: hide_secrets(uri_of(one) or one) if isinstance(one, str) else one
        for name, one in values.items()
    }
    return {**values, "solver": str(solver), "seed": seed}


def _coordinator(
    config: RunConfig,
    settings: RunSettings,
    resume: Checkpoint | None,
    update: Update | None,
    taken_over: Takeover | None,
    layout: Layout,
    leases: Leases | None,
) -> Coordinator:
    spec = settings.spec
    awaited: Iterable[int] | None = None
    if resume is not None and taken_over is not None:
        awaited = taken_over.members
    elif resume is not None and settings.master_restarts:
        # A host may have gone meanwhile: its workers are not waited for.
        awaited = range(settings.workers)
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
        over_hosts=isinstance(spec, ScriptJob) or sums_over_hosts(config, settings),
        # What is compressed loses some at each report, so it is reported as often as without a team.
        stretch_s=config.stretch if settings.compression.payload == "none" else 0.0,
        most_stretch_s=min(MOST_STRETCH_S, (config.max_seconds or math.inf) / PARTS_OF_RUN),
        own_counts=isinstance(spec, ScriptJob),
        once=config.data_share == "once",
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
            batch_size=spec.batch_size,
            turns=None if turns is None else astuple(turns),
            own_optimizers=isinstance(spec, ScriptJob),
        ),
        plan,
        version=resume.counters.version if resume else 0,
        samples=samples,
        first_ticket=settings.epoch * TICKETS_OF_AN_EPOCH + 1,
        received=resume.counters.received if resume else 0,
        stopping=_stopping(config, progress),
        awaited=set(awaited or ()),
        started=awaited is not None,
        division=_division(config, settings, layout, leases) if config.divides_by_speed else None,
    )


def _division(
    config: RunConfig, settings: RunSettings, layout: Layout, leases: Leases | None
) -> SpeedDivision:
    """A script's batch has enough records for its statistics, and at most so many that its memory may hold them."""
    batch = settings.spec.batch_size
    if leases is None:
        return SpeedDivision(batch, settings.spec.iter_size, workers=config.workers)
    normalizes = any(blob.statistic for blob in layout.blobs)
    return SpeedDivision(
        batch * config.workers,
        least=min(batch, max(2, batch // 8)) if normalizes else 1,
        most=2 * batch,
        gain=SCRIPTS_GAIN,
        may=lambda: leases.may_divide,
    )


def _stopping(config: RunConfig, progress: TrainingProgress | None) -> Stopping:
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


def _run_log(run_dir: Path, board: StatusBoard, *, resumed: bool) -> MetricsLog:
    try:
        now = time.monotonic()
        log = MetricsLog(run_dir, now, resumed=resumed, tell=board.trouble_with_log)
        log.clock(datetime.now(UTC), now, board.records)
        return log
    except OSError as error:
        what = f"{run_dir / METRICS} cannot be copied to continue"
        raise CheckpointError(f"{what}: {error.strerror}; make room or make it writable") from None
