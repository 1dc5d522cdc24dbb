"""The run and its net as the master has them, for hosts that compare theirs before they join."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from speedo.exchange.vector import Layout
from speedo.run.config.run_config import RunConfig
from speedo.run.script_job import ScriptJob
from speedo.run.settings import RunSettings


def run_facts(
    config: RunConfig, settings: RunSettings, layout: Layout, records: int | None
) -> dict[str, Any]:
    """As values for JSON; `records` is how many there are, and the layout is empty without a model so far."""
    spec = settings.spec
    if isinstance(spec, ScriptJob):
        trained: dict[str, Any] = {"script": str(spec.path)}
    else:
        trained = {"solver": spec.text, "folder": str(spec.folder), "net_files": spec.net_files}
    return {
        "speedo": settings.version,
        "run": settings.run,
        "mode": config.mode,
        "workers": config.workers,
        "batch_sizes": settings.batch_sizes[:1],
        "records": None if config.data_share == "own" else records,
        **trained,
        "engine": asdict(settings.engine),
        "parameters": layout.size,
        "bytes": layout.nbytes,
        "layout": layout.digest,
        "clock": time.time(),
    }
