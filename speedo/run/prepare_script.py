"""Prepares a run that trains a script of the user's own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from speedo.errors import ConfigError
from speedo.exchange.codecs import Compression
from speedo.run.config.combinations import without_effect
from speedo.run.config.run_config import RunConfig
from speedo.run.prepare import PreparedRun, check_there_is_more, new_run_dir
from speedo.run.script_job import ScriptJob
from speedo.run.script_resume import FormerRun, read_former_run
from speedo.run.script_weights import check_script_weights
from speedo.run.settings import RunSettings
from speedo.run_dir.resume import Resumed, find_run
from speedo.sgd_modes.registry import folders_outside, has_rounds, rules_outside
from speedo.system.cores import CoreOptions
from speedo.version import VERSION

HOSTS_OWN: Final = "each host's own script"


def prepare_script(
    config: RunConfig, note: Callable[[str], None], anew_in: Path | None = None, again: bool = False
) -> PreparedRun:
    """Check the options and the script, and create the run directory. Raises `ConfigError`, `CheckpointError`.

    `anew_in` and `again` are as of `prepare`.
    """
    problems = []
    for number, phase in enumerate(config.phases, 1):
        if phase.has_own_values:
            problems.append(
                f"phase {number} ({phase.mode}): the script has its own optimizer, so lr, momentum, weight_decay and "
                "batch are for it to change; leave them out of the phase"
            )
    if config.script and not os.path.isfile(config.script[0]):
        problems.append(
            f"the script {config.script[0]} is not a file; give the path of a Python script"
        )
    if config.resume is not None and config.weights is not None:
        problems.append(
            "weights and resume are both given: the weights of a resumed run are in its checkpoint; leave one out"
        )
    if problems:
        raise ConfigError(problems)
    in_rounds = has_rounds(config.mode, *(phase.mode for phase in config.phases))
    without = _no_gradients(config)
    if config.script:
        path, folder = Path(config.script[0]), config.script_folder or os.getcwd()
        job = ScriptJob(path, ("python", *config.script), folder, in_rounds, without)
    else:
        job = ScriptJob(Path(HOSTS_OWN), in_rounds=in_rounds, no_gradients=without)
    if config.max_iter is not None:
        job = replace(job, max_iter=config.max_iter)
    if config.resume is not None:
        return _resumed(config, job, config.resume, note, again=again)
    check_script_weights(config.weights, note)
    run = secrets.token_hex(6)
    settings = _settings(config, job, run, int(run[:7], 16) if config.seed is None else config.seed)
    run_dir = anew_in or new_run_dir(config, run)
    _headline(config, job, run_dir, note)
    return PreparedRun(config, settings, run_dir, Path(), None, anew=anew_in is not None)


def _resumed(
    config: RunConfig, job: ScriptJob, run_dir: Path, note: Callable[[str], None], *, again: bool
) -> PreparedRun:
    """The run in this directory, to continue with."""
    resumed = find_run(run_dir, script=True)
    former = read_former_run(resumed.path)
    if not again:
        check_there_is_more(resumed, job, config.max_seconds)
    if config.seed not in (None, former.book.seed):
        raise ConfigError(
            f"seed is {config.seed}, and the run was begun with {former.book.seed}, by which its records are shuffled; "
            "leave --seed out"
        )
    job = replace(job, batch=former.model.batch, first_epoch=former.epoch)
    settings = _settings(config, job, resumed.counters.run, former.book.seed)
    _headline(config, job, resumed.run_dir, note)
    for line in _notes(former, resumed, config.workers):
        note(line)
    return PreparedRun(config, settings, resumed.run_dir, Path(), None, resumed)


def _settings(config: RunConfig, job: ScriptJob, run: str, seed: int) -> RunSettings:
    return RunSettings(
        run,
        VERSION,
        job,
        config.workers,
        (1,) * config.workers,
        seed=seed,
        timeout_s=config.timeout,
        redis_is_ours=config.redis is None,
        overlap=config.overlap,
        serves=config.serves,
        compression=Compression(config.compress, config.compress_center),
        cores=CoreOptions(config.threads, config.bind),
        rules=rules_outside(config),
        code_from=folders_outside(config),
        teams=not job.no_gradients,
    )


def _headline(
    config: RunConfig, job: ScriptJob, run_dir: Path, note: Callable[[str], None]
) -> None:
    note(
        f"{job.path.name}: mode {config.mode}{config.told_rule}, {config.workers} workers, each a process of the "
        f"script; run directory {run_dir}"
    )
    for line in without_effect(config):
        note(line)


def _notes(former: FormerRun, resumed: Resumed, workers: int) -> list[str]:
    """What is restored and what is not, as lines for the user."""
    counters = resumed.counters
    had = [slot for slot in former.checkpoint.histories if slot < workers]
    states = "; there is no worker's state in the checkpoint: optimizers begin without state"
    if had:
        states = f", optimizer and run.keep of {len(had)} of {workers} workers"
    if 0 < len(had) < workers:
        states += f"; the others begin with those of worker {min(had)}"
    restored = f"resumed at iteration {counters.iteration} (version {counters.version}), in epoch {former.epoch}: "
    restored += f"weights, counters, and which records are trained{states}"
    return [
        *(f"warning: {problem}; the one before it is used" for problem in resumed.problems),
        restored,
        "not restored: results in flight, the workers' own weights (easgd), what no run.keep names",
    ]


def _no_gradients(config: RunConfig) -> str:
    """Why the workers cannot exchange gradients before each step, to follow "because"; empty if they can."""
    if config.mode != "sync":
        return f"the mode is {config.mode}: use --mode sync"
    if config.local_steps != 1 or config.sync_when is not None:
        return "workers make several local steps: leave out --local-steps and sync_when"
    if not config.teams:
        return "a round does not wait for all workers: leave out backup_workers"
    if config.delta_scale is not None:
        return "--delta-scale is for deltas: leave it out"
    if config.compress != "none" or config.compress_center != "none":
        return "--compress is for deltas: leave it out"
    return ""
