"""What a run leaves at its end: model, configuration, the last lines of its log, result; elsewhere if it must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from speedo.config.run_config import RunConfig
from speedo.run.result import RunResult, result_fields
from speedo.run_dir.directory import (
    CONFIG,
    METRICS,
    MODEL,
    RESULT,
    link_or_copy,
    write_config,
    write_result,
)
from speedo.run_dir.metrics_log import MetricsLog
from speedo.run_dir.rescue import Rescue


def hand_over(
    result: RunResult,
    run_dir: Path,
    log: MetricsLog,
    config: Mapping[str, Any],
    export: Callable[[Path], None],
    snapshot: str = "",
) -> RunResult:
    """Write the outputs and close the log; the result with what became of them.

    `snapshot` is a second name for the model, beside it; empty for none.

    Raises `EngineError` if no place takes the model.
    """
    rescue = Rescue(run_dir)
    model = rescue.keep(MODEL, export)
    if snapshot:
        with suppress(OSError):  # the model itself is there
            link_or_copy(model, model.with_name(snapshot))
    if not (run_dir / CONFIG).exists():  # there was no room for it when the run began
        rescue.keep(CONFIG, lambda path: write_config(path.parent, config))
    rest, lost = log.close(), log.lines_lost
    if rest and not rescue.keep_rest(METRICS, rest, log.problem):
        lost += rest.count(b"\n")
    if lost:
        rescue.problems.append(f"{lost} lines of {run_dir / METRICS} are lost: no disk took them")
    result = replace(result, model=str(model), log_lines_lost=lost, problems=tuple(rescue.problems))
    fields = result_fields(result)
    rescue.keep(RESULT, lambda path: write_result(path.parent, fields))
    return replace(result, problems=tuple(rescue.problems))


def config_for_people(config: RunConfig, solver: Path, seed: int) -> dict[str, Any]:
    """What `--config` takes to do the same again, in a directory of its own; without secrets."""
    values = config.model_dump(
        mode="json", exclude_none=True, exclude={"redis", "run_dir", "resume"}
    )
    return {**values, "solver": str(solver), "seed": seed}
