"""Prepares a run from its configuration: reads and checks the solver, makes sure that its data is there.

Once a trial has built its nets, it says how the run divides batches, records and tests among its processes.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text
from speedo.data.remote.run_copy import check_writable
from speedo.data.roots import cache_root, default_data_root
from speedo.engines.make import prepare_to_read
from speedo.engines.net_trial import NEITHER, CaffeFacts, check_in_subprocess
from speedo.engines.solver import (
    Draws,
    SolverOverrides,
    SolverSpec,
    check_solver,
    read_solver,
    solver_for_records,
    solver_for_tester,
    solver_for_worker,
    split_batch,
)
from speedo.engines.solver.conversion import convert_databases
from speedo.engines.solver.data_layers import count_records, obstacle_to_placing
from speedo.engines.solver.division import (
    obstacle_to_parts,
    order_of_records,
    state_between_batches,
)
from speedo.engines.weights_check import check_weights
from speedo.errors import ConfigError, SolverError, StoreError
from speedo.exchange.codecs import Compression
from speedo.run.caffe_snapshot import CaffeSnapshot, is_snapshot, read_snapshot
from speedo.run.chosen_solver import chosen_solver
from speedo.run.config.combinations import without_effect
from speedo.run.config.option_checks import weights_in
from speedo.run.config.run_config import RunConfig
from speedo.run.config.stopping_checks import problems_with_outputs, problems_with_tests
from speedo.run.datasets import make_dataset, preparable_dataset
from speedo.run.engine_choice import decided_choice, decided_engine
from speedo.run.exports import check_exports
from speedo.run.remote_inputs import fetch_sources, fetch_weights, located, located_weights
from speedo.run.script_job import ScriptJob
from speedo.run.settings import RunSettings
from speedo.run_dir.directory import check_run_dir, create_run_dir
from speedo.run_dir.resume import Resumed, find_run
from speedo.sgd_modes.registry import (
    adds_deltas,
    folders_outside,
    rules_outside,
    with_whole_gradient,
)
from speedo.storage.redis.store import RedisStore
from speedo.system.cores import CoreOptions
from speedo.system.workplace import check_names
from speedo.version import VERSION

Note = Callable[[str], None]  # takes a line for people


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """What is known before any server starts. `records` is the number of training records, if countable.

    `settings` lack what the started servers add: see `RunSettings.started`. `anew` says that the run begins once more,
    in its own directory.
    """

    config: RunConfig
    settings: RunSettings
    run_dir: Path
    data_root: Path
    records: int | None
    resumed: Resumed | CaffeSnapshot | None = None
    anew: bool = False

    @property
    def continues(self) -> bool:
        """Whether its directory is there already, with what a former master has written."""
        return self.anew or isinstance(self.resumed, Resumed)

    @property
    def spec(self) -> SolverSpec:
        return self.settings.solver

    @property
    def run(self) -> str:
        return self.settings.run


def prepare(
    config: RunConfig, note: Note, anew_in: Path | None = None, again: bool = False
) -> PreparedRun:
    """Read and check the solver, make the bundled dataset if it is missing, create the run directory.

    With `anew_in` it begins there, with `again` once more. Raises `ConfigError`, `SolverError`, `DataError`.
    """
    config = config.model_copy(update={"engine": decided_engine(config, note)})
    prepare_to_read(decided_choice(config).engine)
    if config.redis is not None:
        _check_url(config.redis)
    if config.copy_to is not None:
        check_writable(config.copy_to)
    resumed = _resumed(config)
    path = chosen_solver(config.solver)
    data_root = (located(config.data_root) or default_data_root()).absolute()
    check_names({"the solver": path, "the data root": data_root})
    anew = anew_in is not None
    paths = check_exports(config, resumed=anew or isinstance(resumed, Resumed))
    config = config.model_copy(update=paths)
    overrides = SolverOverrides(
        max_iter=config.max_iter,
        # 0 is ours: Caffe knows no test at the end alone.
        test_interval=config.test_interval or None,
        lr=config.lr,
        warm_up=config.warm_up,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        batch=config.batch,
        seed=config.seed,
        cpu=config.device == "cpu",
        engine=decided_choice(config).engine,
        ignore_unknown=config.ignore_unknown,
    )
    spec = read_solver(path, overrides=overrides, data_root=data_root)
    for line in (*(f"left out: {one}" for one in spec.left_out), *without_effect(config)):
        note(line)
    spec = replace(spec, python_layers=config.python_modules)
    snapshots = spec.snapshot_stem if spec.snapshot > 0 or spec.snapshot_after_train else ""
    if config.run_dir is not None and not (anew or isinstance(resumed, Resumed)):
        check_run_dir(config.run_dir, snapshots)  # before data are made, which may take long
    fetch_sources(spec, config.data_root, note)
    dataset = preparable_dataset(spec)
    if dataset is not None:
        make_dataset(data_root, dataset, note)
    check_solver(spec, workers=config.workers, split=config.splits_batch)
    convert_databases(spec, note)
    if not spec.update_is_linear:
        config = with_whole_gradient(config)
    if (factor := config.scale_of_lr.factor) != 1:
        spec = spec.with_rates_scaled(factor)
    config, spec = _with_momentum_correction(config, spec)
    _check_stopping_and_phases(config, spec, path, overrides, data_root)
    records = count_records(spec)
    if config.data_share == "offset" and records is None:
        raise ConfigError(
            "data_share is offset, but the training records of this net cannot be counted; use --data-share shard or "
            "same"
        )
    if config.data_share == "once":
        _check_each_once(spec, records)
    if resumed is not None and not again:
        check_there_is_more(resumed, spec, config.max_seconds)
    if isinstance(resumed, Resumed):
        settings = run_settings(config, spec, resumed.counters.run)
        return PreparedRun(config, settings, resumed.run_dir, data_root, records, resumed)
    for weights in weights_in(config.weights):
        check_weights(fetch_weights(weights, note), spec.layer_names())
    run = secrets.token_hex(6)
    run_dir = anew_in or new_run_dir(config, run, snapshots)
    settings = run_settings(config, spec, run)
    return PreparedRun(config, settings, run_dir, data_root, records, resumed, anew)


def new_run_dir(config: RunConfig, run: str, snapshots: str = "") -> Path:
    """Create the directory that was asked for, or one in `runs`; `snapshots` is the stem of their names."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    place = config.run_dir or Path("runs") / f"{stamp}-{config.mode.rpartition(':')[2]}-{run[:4]}"
    return create_run_dir(place, snapshots)


def _with_momentum_correction(config: RunConfig, spec: SolverSpec) -> tuple[RunConfig, SolverSpec]:
    """The momentum correction that this mode and this solver have, and the solver that makes it.

    Hakimi, Barkai, Gabel, Schuster, Taming Momentum in a Distributed Asynchronous Environment, 2019, section 4
    (DANA-Slim): each worker steps by Nesterov's form of its own momentum, so the center is where the gradients of the
    other workers expect it. A single worker keeps its solver, and trains the model of plain Caffe. With elastic
    averaging the same solver makes EAMSGD (Zhang, Choromanska, LeCun 2015, algorithm 2), only if it is asked for.
    """
    fits = spec.type == "SGD" and spec.momentum > 0
    if config.momentum_correction and not fits:
        momentum = f" with momentum {spec.momentum:g}" if spec.type == "SGD" else ""
        raise ConfigError(
            f"momentum_correction is for solver type SGD with momentum, and {spec.path} has {spec.type}{momentum}; "
            "leave momentum_correction out"
        )
    if config.momentum_correction is None:
        wanted = fits and adds_deltas(config) and config.workers > 1
    else:
        wanted = config.momentum_correction
    if not wanted:
        return config, spec
    return config.model_copy(update={"momentum_correction": True}), spec.with_nesterov()


def with_workers(prepared: PreparedRun, workers: int) -> PreparedRun:
    """The same run begun with this many workers; its mode stays that of all that are wanted."""
    spec, config = prepared.settings.spec, prepared.config
    if isinstance(spec, ScriptJob):
        sizes = (1,) * workers
        return replace(
            prepared, settings=replace(prepared.settings, workers=workers, batch_sizes=sizes)
        )
    check_solver(spec, workers=workers, split=config.splits_batch)
    begun = run_settings(config.model_copy(update={"workers": workers}), spec, prepared.run)
    return replace(prepared, settings=replace(begun, seed=prepared.settings.seed))


def run_settings(config: RunConfig, spec: SolverSpec, run: str) -> RunSettings:
    """The settings that every node needs, as far as they are known before the start.

    Each worker's batch is a share of the solver's, or the whole of it.
    """
    if config.splits_batch:
        batch_sizes = split_batch(spec.batch_size, config.workers)
    else:
        batch_sizes = (spec.batch_size,) * config.workers
    return RunSettings(
        run,
        VERSION,
        spec,
        config.workers,
        batch_sizes,
        seed=spec.random_seed if spec.random_seed >= 0 else int(run[:7], 16),
        timeout_s=config.timeout,
        redis_is_ours=config.redis is None,
        compression=Compression(config.compress, config.compress_center),
        overlap=config.overlap,
        teams=config.teams,
        factors=config.factors == "auto",
        cores=CoreOptions(config.threads, config.bind),
        serves=config.serves,
        redis_tls=config.redis_tls,
        data_share=config.data_share,
        engine=decided_choice(config),
        rules=rules_outside(config),
        code_from=folders_outside(config),
    )


def _resumed(config: RunConfig) -> Resumed | CaffeSnapshot | None:
    if config.resume is None:
        return None
    if os.path.isdir(config.resume) or not is_snapshot(config.resume):
        return find_run(config.resume)
    return read_snapshot(config.resume)


def _check_stopping_and_phases(
    config: RunConfig, spec: SolverSpec, path: Path, overrides: SolverOverrides, data_root: Path
) -> None:
    """What ends the run or a phase needs tests; a phase's solver values must be such as a solver may have."""
    interval = 0 if config.test_interval == 0 else spec.test_interval
    found = problems_with_tests(config, has_test=spec.has_test, test_interval=interval)
    for number, phase in enumerate(config.phases, 1):
        start = f"phase {number} ({phase.mode})"
        if not phase.has_own_values:
            continue
        own = replace(
            overrides,
            lr=overrides.lr if phase.lr is None else phase.lr,
            momentum=overrides.momentum if phase.momentum is None else phase.momentum,
            weight_decay=overrides.weight_decay
            if phase.weight_decay is None
            else phase.weight_decay,
        )
        try:
            read_solver(path, overrides=own, data_root=data_root)
        except SolverError as error:
            found += [f"{start}: {problem}" for problem in error.problems]
        if phase.batch is not None and phase.batch % spec.batch_size:
            found.append(
                f"{start}: batch is {phase.batch}, which is no multiple of the run's {spec.batch_size}; a step of a "
                "phase sums the gradients of several batches, because Caffe fixes the batch of a net when it builds "
                "it: give the run the smallest, with --batch"
            )
        if config.serves and phase.server_gradient:
            found.append(
                f"{start}: solver values of a phase, server_gradient and servers cannot be combined: servers "
                "get their solver once; leave one of them out"
            )
    if found:
        raise ConfigError(found)


def check_there_is_more(
    resumed: Resumed | CaffeSnapshot, spec: SolverSpec | ScriptJob, max_seconds: float | None
) -> None:
    """Raises `ConfigError` if the run has come to its end."""
    seconds = resumed.counters.seconds if isinstance(resumed, Resumed) else 0.0
    if max_seconds is not None and seconds >= max_seconds:
        raise ConfigError(
            f"{resumed.path} has trained for {seconds:.1f} s of {max_seconds:g}, the end; give a larger --max-seconds "
            "to continue"
        )
    if resumed.iteration >= spec.max_iter:
        raise ConfigError(
            f"{resumed.path} has reached iteration {resumed.iteration} of {spec.max_iter}, the end; give a larger "
            "--max-iter to continue"
        )


def _check_url(redis: str) -> None:
    try:
        RedisStore(redis).close()  # connects at its first call, so this looks at the URL alone
    except StoreError as error:
        raise ConfigError(f"redis is {error}") from None


def check_nets(prepared: PreparedRun, scratch: Path) -> CaffeFacts:
    """Build every net once in a child process, and try what parts of a batch give if it is to be divided.

    Raises `SolverError` with Caffe's own message, `ConfigError` for a test output that the test nets do not have.
    Lists of records that the nets need are written to `scratch`.
    """
    spec, config = prepared.spec, prepared.config

    def worker(draws: Draws) -> str:
        return solver_for_worker(
            spec,
            rank=0,
            count=config.workers,
            batch_size=spec.batch_size,
            seed=1,
            scratch=scratch,
            draws=draws,
        )

    tester = None
    if spec.has_test:  # what a filler is, the worker's net shows
        tester = solver_for_tester(spec, seed=1, scratch=scratch, draws=Draws.NONE)
    records = solver_for_records(spec, batch_size=spec.batch_size, scratch=scratch)
    divides = config.splits_batch and config.workers > 1
    facts = check_in_subprocess(
        worker(Draws.DOUBTFUL),
        tester,
        count=config.workers,
        folder=spec.folder,
        python_layers=spec.python_layers,
        weights=_weights_to_try(prepared),
        divided=worker(Draws.NONE) if divides else None,
        timeout=config.timeout,
        origin=spec.net_files[0],
        records=records,
        cache=checked_records(),
        choice=prepared.settings.engine.on_cpu(),
    )
    if spec.has_test and (problems := problems_with_outputs(config, facts.outputs)):
        raise ConfigError(problems)
    return facts


def checked_records() -> Path:
    """The cache folder that lists the databases in which a check found no problem."""
    return cache_root() / "checked"


def _weights_to_try(prepared: PreparedRun) -> tuple[Path, ...]:
    if isinstance(prepared.resumed, CaffeSnapshot):
        return (prepared.resumed.model,)
    return () if prepared.resumed is not None else located_weights(prepared.config.weights)


# ---------------------------------------------------------------- after the trial of the nets


def with_division(prepared: PreparedRun, facts: CaffeFacts, note: Note) -> PreparedRun:
    """The run with its batches, records and tests divided only as its nets allow; `note` gets a line for each change.

    A division that would not give Caffe's step is not made. Raises `ConfigError` or `SolverError` for one that was
    asked for and cannot be.
    """
    config, spec = prepared.config, prepared.spec
    solver = parse_text(spec.text, caffe_schema().SolverParameter())
    net = solver.train_net_param
    sequence = order_of_records(net)
    if config.splits_batch and config.workers > 1:
        obstacle = sequence or obstacle_to_parts(net)
        if reason := obstacle or facts.undivided:
            # Records that a trial found to depend on each other may be neighbours for a reason.
            sequence = sequence if obstacle else reason
            config = _with_whole_batch(config, reason, facts, note)
        elif facts.division == "sum":
            spec = replace(spec, sums_losses=True)
            note(
                "the loss of a batch is a sum over its records: the workers' gradients are added up"
            )
    if sequence and config.workers > 1:
        config = _with_offset(prepared, config, sequence, note)
    config = _with_tests_in_one(config, solver.test_net_param, note)
    if config is prepared.config and spec is prepared.spec:
        return prepared
    settings = run_settings(config, spec, prepared.run)
    return replace(prepared, config=config, settings=replace(settings, seed=prepared.settings.seed))


def _with_tests_in_one(config: RunConfig, nets: Iterable[Any], note: Note) -> RunConfig:
    """The options with one tester where a test must not be cut into parts."""
    if config.testers == 1 or not (state := state_between_batches(nets)):
        return config
    note(f"one tester (--test-interval testers=1): {state}")
    return config.model_copy(update={"testers": 1})


def _with_whole_batch(config: RunConfig, reason: str, facts: CaffeFacts, note: Note) -> RunConfig:
    if config.split_batch is None:
        note(
            f"each worker trains on whole batches (--whole-batch), as parts would not give Caffe's step: {reason}"
        )
        return config.model_copy(update={"split_batch": False})
    if facts.undivided not in ("", NEITHER):
        raise SolverError(f"--split-batch: {facts.undivided}; use --whole-batch")
    note(f"warning: with --split-batch the steps are not Caffe's: {reason}")
    return config


def _check_each_once(spec: SolverSpec, records: int | None) -> None:
    problem = obstacle_to_placing(spec)
    if not problem and not records:
        problem = "the training records of this net cannot be counted"
    if problem:
        raise ConfigError(
            f"data_share is once, but {problem}; use --data-share shard, which reads each record once an epoch while "
            "the same workers train"
        )


def _with_offset(prepared: PreparedRun, config: RunConfig, reason: str, note: Note) -> RunConfig:
    """Each worker reads all records in their order, beginning at another place."""
    if config.data_share in ("offset", "same"):
        return config
    if "data_share" in config.model_fields_set:
        note(
            f"warning: --data-share {config.data_share} does not leave the records of a worker in their order: {reason}"
        )
        return config
    if prepared.records is None:
        raise ConfigError(
            f"{reason}, so the records must stay in their order, but they cannot be counted to begin at several "
            "places: use --workers 1, or --data-share same"
        )
    note(
        f"each worker reads all records, beginning at another place (--data-share offset): {reason}"
    )
    return config.model_copy(update={"data_share": "offset"})
