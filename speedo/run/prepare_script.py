"""Prepares a run that trains a script of the user's own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from speedo.config.run_config import RunConfig
from speedo.errors import ConfigError
from speedo.run.prepare import Prepared, new_run_dir
from speedo.run.script_job import ScriptJob
from speedo.run.settings import RunSettings
from speedo.sgd_modes.registry import has_rounds
from speedo.system.cores import CoreOptions
from speedo.vectors.codecs import Compression
from speedo.version import VERSION


def prepare_script(config: RunConfig, note: Callable[[str], None]) -> Prepared:
    """Check the options and the script, and create the run directory. Raises `ConfigError`."""
    path, *arguments = config.script
    problems = []
    for number, phase in enumerate(config.phases, 1):
        if phase.has_own_values:
            problems.append(
                f"phase {number} ({phase.mode}): the script has its own optimizer, so lr, momentum, weight_decay and "
                "batch are for it to change; leave them out of the phase"
            )
        if phase.until:
            problems.append(
                f"phase {number} ({phase.mode}) ends by a test, and the run of a script has none; give its iterations, "
                f"as in {phase.mode}:500"
            )
    if not Path(path).is_file():
        problems.append(f"the script {path} is not a file; give the path of a Python script")
    if problems:
        raise ConfigError(problems)
    run = secrets.token_hex(6)
    in_rounds = has_rounds(config.mode, *(phase.mode for phase in config.phases))
    without = _no_gradients(config)
    job = ScriptJob(Path(path), tuple(arguments), os.getcwd(), in_rounds, without)
    if config.max_iter is not None:
        job = replace(job, max_iter=config.max_iter)
    settings = RunSettings(
        run,
        VERSION,
        job,
        config.workers,
        (1,) * config.workers,
        seed=int(run[:7], 16) if config.seed is None else config.seed,
        timeout_s=config.timeout,
        redis_is_ours=config.redis is None,
        compression=Compression(config.compress, config.compress_center),
        cores=CoreOptions(config.threads, config.bind),
        teams=not without,
    )
    run_dir = new_run_dir(config, run)
    note(
        f"{job.path.name}: mode {config.mode}, {config.workers} workers, each a process of the script; "
        f"run directory {run_dir}"
    )
    return Prepared(config, settings, run_dir, Path(), None)


def _no_gradients(config: RunConfig) -> str:
    """Why the workers cannot exchange gradients before each step, to go on after "because"; empty if they can."""
    if config.mode != "sync":
        return f"the mode is {config.mode}: use --mode sync"
    if config.local_steps != 1 or config.sync_when is not None:
        return "workers make several local steps: leave out --local-steps and --sync-when"
    if not config.teams:
        return "a round does not wait for all workers: leave out --backup-workers"
    if config.delta_scale is not None:
        return "--delta-scale is for deltas: leave it out"
    if config.compress != "none" or config.compress_center != "none":
        return "--compress and --compress-center are for deltas: leave them out"
    return ""
