"""What a run writes for other tools, by its options: checked before the start, made with the parts of the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from speedo.master.center import RunCenter
from speedo.run.config.run_config import RunConfig
from speedo.run.script_job import ScriptJob
from speedo.run.settings import RunSettings
from speedo.run_dir.checkpoint_file import Counters
from speedo.watch.export import EXPORTS
from speedo.watch.export.background import Background, CenterCopies
from speedo.watch.export.base import ExportedRun
from speedo.watch.status import StatusBoard


def check_exports(config: RunConfig, *, resumed: bool) -> dict[str, Any]:
    """Options with whole paths; raises `ConfigError` for what an exporter could not write or serve."""
    whole: dict[str, Any] = {}
    for export in EXPORTS:
        whole |= export.check(resumed, **export.values(config))
    return whole


def make_exports(
    config: RunConfig,
    settings: RunSettings,
    run_dir: Path,
    center: RunCenter,
    board: StatusBoard,
    resumed: Counters | None,
    clock: Callable[[], float],
) -> tuple[Background | None, CenterCopies | None]:
    """The observers that the options ask for."""
    run = ExportedRun(
        name=settings.run,
        folder=run_dir,
        layout=center.layout,
        solver=None if isinstance(settings.spec, ScriptJob) else settings.spec,
        status=lambda: board.status(clock()),
        bytes_of=lambda: (center.payload_bytes, center.center_bytes),
        resumed=resumed,
        wall_s=time.time() - clock(),
        note=board.notice,
    )
    exporters = [export.make(run, **export.values(config)) for export in EXPORTS]
    made = [one for one in exporters if one is not None]
    if not made:
        return None, None
    background = Background(made, board.notice)
    if not any(one.wants_weights for one in made):
        return background, None
    return background, CenterCopies(lambda: center.vector, background)
