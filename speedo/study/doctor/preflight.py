"""The doctor's quick checks before each run: problems that would soon end it are reported before anything is lost."""

from __future__ import annotations

import os

from speedo.errors import MachineError
from speedo.run.config.run_config import RunConfig
from speedo.sgd_modes.registry import parts_outside
from speedo.study.doctor.base import NodeRequest
from speedo.study.doctor.checks import quick_findings
from speedo.system.workplace import check_workplace


def require_for(config: RunConfig) -> None:
    """`require` for a run that this machine leads; a mode or rule of the user's is tried first, for seconds."""
    resumes = config.resume is not None and os.path.isdir(config.resume)
    place = config.resume if resumes else config.run_dir
    require(
        NodeRequest(workers=config.workers, run_dir=place, threads=config.threads, bind=config.bind)
    )
    if parts_outside(config):
        # It has the simulator, which other runs need not load.
        from speedo.study.contracts.trial import require_sound

        require_sound(config)


def require(request: NodeRequest) -> None:
    """Raises `ConfigError`, or `MachineError` with the doctor's own sentences, if a check fails.

    Takes milliseconds and starts nothing. Warnings are ignored here: the run reports them itself, or works without.
    """
    check_workplace()
    failed = [one for one in quick_findings(request) if one.level == "fail"]
    if failed:
        raise MachineError(
            f"{one.name}: {one.text}{f'; {one.remedy}' if one.remedy else ''}" for one in failed
        )
