"""The result of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run. `accuracy` is the test net's for the weights in `model`; None without one.

    Of a detector it is the mean average precision.

    `images_per_s` counts samples merged over the seconds from the first turn to the last merge. `bytes_pushed` and
    `bytes_pulled` are those of the vectors that workers sent and fetched, since the last resume. `log_lines_lost`
    counts lines of the run log that could not be written; `problems` names outputs that are not in `run_dir`. `best` is
    what `--keep-best` kept: output, value, iteration, version, model.
    `warning` says why the model may be worth less than the other figures say: it has learned nothing, or a worker was
    given up, and with it its records. `script_failures` are scripts that failed
    in what they did after the training. `master_restarts` says why the command has started the master again, each time,
    and `merges_undone` how many merges the run has lost by going back to checkpoints.
    """

    mode: str
    workers: int
    complete: bool
    reason: str
    iteration: int
    version: int
    accuracy: float | None
    metrics: Mapping[str, float]
    test_problem: str
    images_per_s: float
    seconds: float
    samples: int
    dropped: Mapping[str, int]
    model: str
    run_dir: str
    bytes_pushed: int = 0
    bytes_pulled: int = 0
    log_lines_lost: int = 0
    problems: tuple[str, ...] = ()
    best: Mapping[str, Any] | None = None
    warning: str = ""
    script_failures: tuple[str, ...] = ()
    master_restarts: tuple[str, ...] = ()
    merges_undone: int = 0


def result_fields(result: RunResult) -> dict[str, Any]:
    """A result as plain data, in the order in which `result.json` has it."""
    after = ("script_failures",)  # they come when the file is written
    return {name: getattr(result, name) for name in result.__slots__ if name not in after}
