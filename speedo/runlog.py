"""What a run leaves behind: its directory with configuration, metrics, result and model.

`metrics.jsonl` has a line for every result that reached the master, with what became of it, and one for every
test, join and leave. `time` is seconds since the run began, on a clock that never jumps.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import yaml

from speedo.checkpoint import Counters
from speedo.errors import ConfigError
from speedo.files import read_bytes
from speedo.json_lines import line_of, plain, values_of
from speedo.messages import (
    Action,
    Checkpointed,
    Drop,
    Evaluate,
    Event,
    Finish,
    Joined,
    Left,
    Merge,
    SetAside,
    Snapshot,
    StoreTrouble,
    Tested,
    Trained,
)
from speedo.run_files import number_of

METRICS = "metrics.jsonl"
CONFIG = "config.yaml"
RESULT = "result.json"
MODEL = "model.caffemodel"
MOST_TIMINGS = 20_000  # of results whose fate is not known yet; late ones leave theirs behind


def create_run_dir(folder: Path) -> Path:
    """Make an empty run directory; raises `ConfigError` if it holds a run already or cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(folder / METRICS) or os.path.lexists(folder / RESULT):
            raise ConfigError(
                f"run_dir {folder} already holds a run; give another, or remove that one"
            )
        with tempfile.TemporaryFile(dir=folder):
            pass
        (folder / "logs").mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"run_dir {folder} cannot be written: {error.strerror}; give another with --run-dir"
        ) from None
    return folder.resolve()


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def write_config(folder: Path, values: Mapping[str, Any]) -> None:
    """Keep the configuration in the form that `--config` reads; secrets must be gone from it."""
    write_whole(folder / CONFIG, yaml.safe_dump(dict(values), sort_keys=False))


def write_result(folder: Path, result: Mapping[str, Any]) -> None:
    """Keep the result as JSON, whole or not at all."""
    write_whole(folder / RESULT, json.dumps(plain(result), indent=2) + "\n")


class MetricsLog:
    """An observer that writes `metrics.jsonl`, a line as soon as it is known.

    With `resumed` it goes on from the lines of the former master, in a copy that takes the place of the file:
    should that master come back, what it writes goes nowhere. Times go on from the last line's.
    """

    def __init__(self, folder: Path, start: float, *, resumed: bool = False) -> None:
        self._start = start
        self._file: IO[bytes]
        if resumed:
            self._file, seconds = _continued(folder / METRICS)
            self._start -= seconds
        else:
            self._file = (folder / METRICS).open("wb")
        self._timings: dict[tuple[int, int], Mapping[str, float]] = {}
        self._merged = (0, 0)  # the last version, and its iteration
        self._iterations: dict[int, int] = {}  # of the versions that are being tested

    def resume(self, epoch: int, counters: Counters, now: float) -> None:
        """The run goes on from this checkpoint: what was merged after it is undone."""
        self._merged = (counters.version, counters.iteration)
        self._write(
            now,
            "resumed",
            epoch=epoch,
            version=counters.version,
            iteration=counters.iteration,
            samples=counters.samples,
        )

    def disown(self) -> None:
        """Write nothing more: the file is another master's."""
        self._file.close()

    def saw(self, event: Event, now: float) -> None:
        match event:
            case Trained():
                # A repetition must not take the timings of the result that is still held.
                self._timings.setdefault((event.worker, event.ticket), event.timings)
                if len(self._timings) > MOST_TIMINGS:
                    del self._timings[next(iter(self._timings))]
            case Joined():
                self._write(now, "joined", worker=event.worker, incarnation=event.incarnation)
            case Left():
                self._write(
                    now,
                    "left",
                    worker=event.worker,
                    incarnation=event.incarnation,
                    cause=event.cause,
                )
            case Tested():
                version, last = self._merged
                asked = self._iterations.pop(event.version, 0)
                self._write(
                    now,
                    "test",
                    version=event.version,
                    iteration=last if event.version == version else asked,
                    metrics=dict(event.metrics),
                    problem=event.problem or None,
                )
            case Checkpointed():
                self._write(
                    now,
                    "checkpoint",
                    version=event.version,
                    iteration=event.iteration,
                    bytes=event.bytes,
                    problem=event.problem or None,
                )
            case StoreTrouble():
                self._write(now, "store", problem=event.problem or None)
            case _:
                pass

    def did(self, action: Action, now: float) -> None:
        match action:
            case Merge():
                self._merged = (action.version, action.iteration)
                timings = action.timings or ({},) * len(action.parts)
                for part, own in zip(action.parts, timings, strict=True):
                    theirs = self._timings.pop((part.worker, part.ticket), {})
                    self._write(
                        now,
                        "result",
                        decision="merged",
                        worker=part.worker,
                        incarnation=part.incarnation,
                        ticket=part.ticket,
                        version=action.version,
                        iteration=action.iteration,
                        staleness=part.staleness,
                        samples=part.samples,
                        loss=part.loss,
                        rate=action.rate,
                        timings={**theirs, **own},
                    )
            case Drop():
                if action.decision != "late":
                    self._timings.pop((action.worker, action.ticket), None)
                self._write(
                    now,
                    "result",
                    decision=action.decision,
                    reason=action.reason,
                    worker=action.worker,
                    incarnation=action.incarnation,
                    ticket=action.ticket,
                    staleness=action.staleness,
                    loss=action.loss,
                )
            case Evaluate():
                self._iterations[action.version] = action.iteration
            case SetAside():
                self._write(now, "set-aside", worker=action.worker, reason=action.reason)
            case Snapshot():
                self._write(now, "snapshot", version=action.version, iteration=action.iteration)
            case Finish():
                self._write(now, "finish", complete=action.complete, reason=action.reason)
            case _:
                pass

    def close(self) -> None:
        self._file.close()

    def _write(self, now: float, event: str, **fields: Any) -> None:
        if self._file.closed:
            return
        line = {"time": round(now - self._start, 6), "event": event, **fields}
        self._file.write(line_of(line))
        self._file.flush()


def _continued(path: Path) -> tuple[IO[bytes], float]:
    """The log so far in a new file under the same name, without a torn last line; its last time in seconds."""
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        data = b""
    lines = data.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        del lines[-1]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    file = temporary.open("wb")
    file.writelines(lines)
    file.flush()
    temporary.replace(path)
    return file, _last_time(lines)


def _last_time(lines: Sequence[bytes]) -> float:
    """Of the last line that tells one; 0 if none does."""
    for line in reversed(lines):
        try:
            return number_of(values_of(line), "time")
        except (ValueError, AttributeError, RecursionError):
            continue  # no line of ours
    return 0.0
