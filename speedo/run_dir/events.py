"""What `metrics.jsonl` says, as records: the one reader for reports, plans, pages and callbacks.

Every value is checked, because the file may have been edited.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from speedo.errors import DataError
from speedo.messages import Records
from speedo.run_dir.checkpoint_file import checkpoint_path
from speedo.run_dir.directory import CHECKPOINTS, METRICS
from speedo.run_dir.read_back import (
    count_of,
    json_lines,
    list_of,
    mapping_of,
    metrics_of,
    number_of,
    object_in,
    optional_number_of,
    text_of,
)
from speedo.system.appended import AppendedLines
from speedo.system.foreign_text import MOST_NAME, clean_text

# Parts of a turn: what its worker measures, and what the master does.
WORKER_PARTS: Final = ("fetch", "compute", "team", "publish")
MASTER_PARTS: Final = ("receive", "merge")
SCRIPT_ENDED: Final = "its script has ended"  # why a worker left: its part of the training is done
DECISIONS: Final = frozenset(("discarded", "late", "refused"))


@dataclass(frozen=True, slots=True)
class ResultMerged:
    """A worker's result is in the center, which is now `version`. `loss` is NaN where a script says none.

    `staleness` counts the results that were merged while this one was made; `seconds` are those of the run. `losses`
    are the losses of the rounds of a team, `timings` the seconds of the parts of the turn by name, `records` what a
    script trained on, as in `speedo.messages.Trained`.
    """

    worker: int
    iteration: int
    version: int
    loss: float
    samples: int
    staleness: int
    seconds: float
    losses: tuple[float, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)
    records: Records = ()


@dataclass(frozen=True, slots=True)
class ResultDropped:
    """A worker's result was not merged; `decision` is discarded, late or refused."""

    worker: int
    decision: str
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelTested:
    """A version of the center was tested; `metrics` are the outputs of the test by name; NaN is no number."""

    iteration: int
    version: int
    metrics: Mapping[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class MasterBegan:
    """A master writes the lines from here on; `records` are those of an epoch, None if that is not known."""

    records: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker takes part from now on; `host` is empty where that is not known."""

    worker: int
    host: str
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """A worker is gone before the run's end; `cause` is a sentence."""

    worker: int
    cause: str
    seconds: float


@dataclass(frozen=True, slots=True)
class BatchDivided:
    """The workers have other shares of the batch from now on; `reason` is a sentence."""

    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """A checkpoint is on the disk. The oldest are removed later."""

    path: Path
    iteration: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RunResumed:
    """Another master resumes the run from a checkpoint: what was merged after it is undone, all workers are new.

    `cause` says why the command did that by itself; it is empty if a person has resumed the run.
    """

    epoch: int
    version: int
    iteration: int
    samples: int
    seconds: float
    cause: str = ""


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run ends; workers that leave from now on are let go."""

    complete: bool
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class OtherLine:
    """A line that none of the readers needs."""

    seconds: float


RunEvent = (
    ResultMerged
    | ResultDropped
    | ModelTested
    | MasterBegan
    | WorkerJoined
    | WorkerLeft
    | BatchDivided
    | CheckpointWritten
    | RunResumed
    | RunFinished
    | OtherLine
)


class EventReader:
    """Makes the records of the lines of one log, given in their order; `epoch` is that of the first line's master."""

    def __init__(self, run_dir: Path, epoch: int = 0) -> None:
        self._run_dir, self._epoch = run_dir, epoch
        self._finished = False

    def event(self, line: Mapping[str, Any]) -> RunEvent:
        """Raises `ValueError` for a value that a run never writes."""
        seconds = number_of(line, "time")
        match line.get("event"):
            case "result" if line.get("decision") == "merged":
                return _merged(line, seconds)
            case "result":
                decision = text_of(line, "decision")
                if decision not in DECISIONS:
                    raise ValueError("a decision that no run takes")
                worker = count_of(line, "worker")
                return ResultDropped(worker, decision, text_of(line, "reason"), seconds)
            case "test" if not line.get("problem"):
                at = count_of(line, "iteration"), count_of(line, "version")
                return ModelTested(*at, metrics_of(line), seconds)
            case "clock":
                known = line.get("records") is not None  # earlier versions wrote none
                return MasterBegan(count_of(line, "records") if known else None, seconds)
            case "joined":
                return WorkerJoined(count_of(line, "worker"), text_of(line, "host"), seconds)
            case "left" | "set-aside" if not self._finished:
                cause = text_of(line, "cause") or text_of(line, "reason")
                return WorkerLeft(count_of(line, "worker"), cause, seconds)
            case "divided":
                return BatchDivided(text_of(line, "reason"), seconds)
            case "checkpoint" if line.get("bytes"):
                folder, version = self._run_dir / CHECKPOINTS, count_of(line, "version")
                path = checkpoint_path(folder, self._epoch, version)
                return CheckpointWritten(path, count_of(line, "iteration"), seconds)
            case "resumed":
                resumed = RunResumed(
                    count_of(line, "epoch"),
                    count_of(line, "version"),
                    count_of(line, "iteration"),
                    count_of(line, "samples"),
                    seconds,
                    text_of(line, "cause"),
                )
                self._epoch, self._finished = resumed.epoch, False
                return resumed
            case "finish":
                self._finished = True
                return RunFinished(line.get("complete") is True, text_of(line, "reason"), seconds)
        return OtherLine(seconds)


def read_events(run_dir: Path) -> Iterator[RunEvent]:
    """The whole log; an incomplete last line is skipped. Raises `DataError`, with the number of a line that is none."""
    path, reader = run_dir / METRICS, EventReader(run_dir)
    try:
        for number, whole, line in json_lines(path):
            if line is None and not whole:
                continue
            try:
                if line is None:
                    raise ValueError("no JSON object")
                event = reader.event(line)
            except ValueError as error:
                raise DataError(
                    f"{path}, line {number} is not a line of metrics ({error}): remove it"
                ) from None
            yield event
    except OSError as error:
        raise DataError(
            f"{run_dir} is not a run directory: {path.name} cannot be read ({error.strerror}); "
            "give the value of --run-dir"
        ) from None


class LogFollower:
    """The records that a log gains; a line that was edited is skipped, a log that is not there yet is empty."""

    def __init__(self, run_dir: Path, begin: int = 0, epoch: int = 0) -> None:
        """From byte `begin` of the log on; `epoch` is that of its master there."""
        self._lines, self._reader = (
            AppendedLines(run_dir / METRICS, begin),
            EventReader(run_dir, epoch),
        )

    def new(self) -> list[RunEvent]:
        """Those since the last call, some at a time."""
        found = []
        for line in self._lines.new():
            with suppress(ValueError):
                if (values := object_in(line.encode())) is not None:
                    found.append(self._reader.event(values))
        return found


def _merged(line: Mapping[str, Any], seconds: float) -> ResultMerged:
    timings = {} if line.get("timings") is None else mapping_of(line, "timings")
    parts = {
        clean_text(name, MOST_NAME): number_of(timings, name, least=0.0)
        for name, value in timings.items()
        if value is not None
    }
    return ResultMerged(
        count_of(line, "worker"),
        count_of(line, "iteration"),
        count_of(line, "version"),
        optional_number_of(line, "loss"),
        count_of(line, "samples"),
        count_of(line, "staleness"),
        seconds,
        tuple(optional_number_of({"losses": one}, "losses") for one in list_of(line, "losses")),
        parts,
        tuple(_range(one) for one in list_of(line, "records")),
    )


def _range(value: Any) -> tuple[int, int, int]:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("records has an entry that is no range")
    epoch, first, stop = (count_of({"records": one}, "records") for one in value)
    return epoch, first, stop
