"""Writes the outputs of a run at its end: the model, the configuration, the rest of the log, the result.

Files that do not fit into the run directory are written elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from speedo.run.result import RunResult, result_fields
from speedo.run_dir.directory import (
    CONFIG,
    METRICS,
    RESULT,
    link_or_copy,
    write_config,
    write_result,
)
from speedo.run_dir.metrics_log import MetricsLog
from speedo.run_dir.rescue import Rescue
from speedo.system.daemon_thread import HUNG_S, within


def hand_over(
    result: RunResult,
    run_dir: Path,
    log: MetricsLog,
    config: Mapping[str, Any],
    name: str,
    export: Callable[[Path], None],
    snapshot: str = "",
) -> RunResult:
    """Write the outputs and close the log; returns the result with the outputs' paths and problems.

    `export` writes the model, a file of this `name`; `snapshot` is a second name for it, beside it; empty for none.

    Raises `EngineError` if the model cannot be written anywhere.
    """
    rescue = Rescue(run_dir)
    model = rescue.keep(name, export)
    if snapshot:
        with suppress(OSError):  # the model itself is there
            within(HUNG_S, lambda: link_or_copy(model, model.with_name(snapshot)))
    if not _is_there(run_dir / CONFIG):  # there was no room for it when the run began
        rescue.keep(CONFIG, lambda path: write_config(path.parent, config))
    try:
        rest = within(HUNG_S, log.close)
    except OSError as error:
        rest = b""
        rescue.problems.append(
            f"the last lines of {run_dir / METRICS} could not be written ({error.strerror})"
        )
    lost = log.lines_lost
    if rest and not rescue.keep_rest(METRICS, rest, log.problem):
        lost += rest.count(b"\n")
    if lost:
        rescue.problems.append(
            f"{lost} lines of {run_dir / METRICS} are lost: no disk could store them"
        )
    earlier, problems = result.problems, (*result.problems, *rescue.problems)
    result = replace(result, model=str(model), log_lines_lost=lost, problems=problems)
    fields = result_fields(result)
    rescue.keep(RESULT, lambda path: write_result(path.parent, fields))
    return replace(result, problems=(*earlier, *rescue.problems))


def _is_there(path: Path) -> bool:
    """Whether there is such a file; False if its disk does not say."""
    try:
        return within(HUNG_S, path.exists)
    except OSError:
        return False
