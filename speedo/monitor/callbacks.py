"""A run's events for a program: what its log says, as records with which functions of the user's are called."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from speedo.errors import ConfigError
from speedo.json_lines import values_of
from speedo.run_dir.checkpoint_file import checkpoint_path
from speedo.run_dir.directory import CHECKPOINTS, METRICS
from speedo.run_dir.read_back import (
    count_of,
    metrics_of,
    number_of,
    optional_number_of,
    text_of,
)
from speedo.system.appended import AppendedLines


@dataclass(frozen=True, slots=True)
class ResultMerged:
    """A worker's result is in the center, which is now `version`. `loss` is NaN where a script says none.

    `staleness` counts the results that were merged while this one was made; `seconds` are those of the run.
    """

    worker: int
    iteration: int
    version: int
    loss: float
    samples: int
    staleness: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelTested:
    """A version of the center was tested; `metrics` are the outputs of the test by name."""

    iteration: int
    version: int
    metrics: Mapping[str, float]
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
class CheckpointWritten:
    """A checkpoint is on the disk. The oldest are removed later."""

    path: Path
    iteration: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The functions that a caller gives. Raises `ConfigError` for what cannot be called."""

    on_result: Callable[[ResultMerged], object] | None = None
    on_test: Callable[[ModelTested], object] | None = None
    on_join: Callable[[WorkerJoined], object] | None = None
    on_leave: Callable[[WorkerLeft], object] | None = None
    on_checkpoint: Callable[[CheckpointWritten], object] | None = None

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {value!r:.60}: give a function that takes one event, or leave it out"
            for name, value in self._given()
            if not callable(value)
        ]
        if problems:
            raise ConfigError(problems)

    def __bool__(self) -> bool:
        return bool(self._given())

    def _given(self) -> list[tuple[str, Any]]:
        there = [(one.name, getattr(self, one.name)) for one in fields(self)]
        return [(name, value) for name, value in there if value is not None]


class CallbackError(Exception):
    """What a callback raised, as `error`; `str` is a sentence that names the callback."""

    def __init__(self, name: str, error: BaseException) -> None:
        words = " ".join(str(error).split())
        super().__init__(f"{name}: {type(error).__name__}{f': {words}' if words else ''}"[:300])
        self.error = error


class LogCallbacks:
    """Calls the functions for the lines that a run's log gains."""

    def __init__(self, callbacks: Callbacks, run_dir: Path, begin: int, epoch: int = 0) -> None:
        """From byte `begin` of the log on, which is what `length_of_log` said; `epoch` is the master's."""
        self._callbacks, self._run_dir, self._epoch = callbacks, run_dir, epoch
        self._log = AppendedLines(run_dir / METRICS, begin)
        self._lines: deque[str] = deque()
        self._finished = False  # then workers are let go

    def call_one(self) -> bool:
        """Call for the next line; whether there was one. Raises `CallbackError` for what the function raises."""
        if not self._lines:
            self._lines.extend(self._log.new())
        if not self._lines:
            return False
        try:
            values = values_of(self._lines.popleft().encode())
            found = self._event(values) if isinstance(values, dict) else None
        except (ValueError, RecursionError):
            return True  # a line that was edited
        if found is not None and (function := getattr(self._callbacks, found[0])):
            try:
                function(found[1])
            except (Exception, SystemExit) as error:
                raise CallbackError(found[0], error) from error
        return True

    def _event(self, line: Mapping[str, Any]) -> tuple[str, Any] | None:
        """The callback and its record; None for a line that nobody is called for."""
        seconds = number_of(line, "time")
        match line.get("event"):
            case "result" if line.get("decision") == "merged":
                counts = {
                    name: count_of(line, name)
                    for name in ("worker", "iteration", "version", "samples", "staleness")
                }
                loss = optional_number_of(line, "loss")
                return "on_result", ResultMerged(loss=loss, seconds=seconds, **counts)
            case "test" if not line.get("problem"):
                at = count_of(line, "iteration"), count_of(line, "version")
                return "on_test", ModelTested(*at, metrics_of(line), seconds)
            case "joined":
                worker = count_of(line, "worker")
                return "on_join", WorkerJoined(worker, text_of(line, "host"), seconds)
            case "left" | "set-aside" if not self._finished:
                cause = text_of(line, "cause") or text_of(line, "reason")
                return "on_leave", WorkerLeft(count_of(line, "worker"), cause, seconds)
            case "checkpoint" if line.get("bytes"):
                folder, version = self._run_dir / CHECKPOINTS, count_of(line, "version")
                path = checkpoint_path(folder, self._epoch, version)
                written = CheckpointWritten(path, count_of(line, "iteration"), seconds)
                return "on_checkpoint", written
            case "resumed":
                self._epoch = count_of(line, "epoch")
            case "finish":
                self._finished = True
        return None


def length_of_log(run_dir: Path) -> int:
    """Bytes of the whole lines that the log has now; a master that resumes the run keeps these."""
    try:
        data = (run_dir / METRICS).read_bytes()
    except OSError:
        return 0
    return data.rfind(b"\n") + 1
