"""Prepares a run that trains a script of the user's own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from speedo.config.run_config import RunConfig
from speedo.errors import ConfigError
from speedo.run.prepare import Prepared, new_run_dir
from speedo.run.script_job import ScriptJob
from speedo.run.settings import RunSettings
from speedo.sgd_modes.registry import has_rounds
from speedo.system.cores import CoreOptions
from speedo.vectors.codecs import Compression
from speedo.version import VERSION

HOSTS_OWN: Final = "each host's own script"


def prepare_script(config: RunConfig, note: Callable[[str], None]) -> Prepared:
    """Check the options and the script, and create the run directory. Raises `ConfigError`."""
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
    if config.script and not Path(config.script[0]).is_file():
        problems.append(
            f"the script {config.script[0]} is not a file; give the path of a Python script"
        )
    if problems:
        raise ConfigError(problems)
    run = secrets.token_hex(6)
    in_rounds = has_rounds(config.mode, *(phase.mode for phase in config.phases))
    if config.script:
        job = ScriptJob(
            Path(config.script[0]), ("python", *config.script), os.getcwd(), in_rounds=in_rounds
        )
    else:
        job = ScriptJob(Path(HOSTS_OWN), in_rounds=in_rounds)
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
    )
    run_dir = new_run_dir(config, run)
    note(
        f"{job.path.name}: mode {config.mode}, {config.workers} workers, each a process of the script; "
        f"run directory {run_dir}"
    )
    return Prepared(config, settings, run_dir, Path(), None)
