"""What a run leaves behind: its directory with configuration, metrics, result and model.

`metrics.jsonl` has a line for every result that reached the master, with what became of it, and one for every
test, join and leave. `time` is seconds since the run began, on a clock that never jumps; the line `clock` of each
master says which date and time that is.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from caffenets.files import read_bytes, written_whole
from speedo.messages import (
    Action,
    Checkpointed,
    Divided,
    Drop,
    Evaluate,
    Event,
    Finish,
    Joined,
    KeepBest,
    Left,
    Merge,
    SetAside,
    Snapshotted,
    StoreTrouble,
    TeamGivenUp,
    Tested,
    Trained,
    Waiting,
)
from speedo.run_dir.checkpoint_file import Counters
from speedo.run_dir.directory import METRICS
from speedo.run_dir.read_back import number_of
from speedo.system.json_lines import line_of, values_of
from speedo.system.line_file import LineFile

# Of results whose fate is not known yet; late ones leave theirs behind.
MOST_RESULTS: Final = 20_000
MERGED: Final = b'"decision":"merged"'
UNDONE: Final = b',"undone":'  # in a line `resumed`
LOOKED_AT: Final = 10_000  # of a former master's last lines, for the last version
# The name of a line, and which fields of an event or action it has; a problem that there is not is null.
LINES: Final[Mapping[type, tuple[str, tuple[str, ...]]]] = {
    Joined: ("joined", ("worker", "incarnation")),
    Left: ("left", ("worker", "incarnation", "cause")),
    Tested: ("test", ("version", "problem")),
    Checkpointed: ("checkpoint", ("version", "iteration", "bytes", "histories", "problem")),
    Snapshotted: ("snapshot", ("version", "iteration", "problem")),
    StoreTrouble: ("store", ("problem",)),
    Drop: (
        "result",
        ("decision", "reason", "worker", "incarnation", "ticket", "staleness", "loss"),
    ),
    SetAside: ("set-aside", ("worker", "reason")),
    Divided: ("divided", ("workers", "records", "reason")),
    TeamGivenUp: ("team-given-up", ("workers", "reason")),
    Waiting: ("workers", ("problem",)),
    KeepBest: ("best", ("version", "iteration", "output", "value", "problem")),
    Finish: ("finish", ("complete", "reason", "trained_again", "left_out")),
}


class MetricsLog:
    """An observer that writes `metrics.jsonl`, a line as soon as it is known.

    With `resumed` it continues from the lines of the former master, in a copy that takes the place of the file:
    should that master come back, what it writes goes nowhere. Times continue from the last line's.

    Lines that the disk does not take wait in memory until it does; `tell` hears what is wrong with it, and an empty
    text once they are all written.
    """

    def __init__(
        self,
        folder: Path,
        start: float,
        *,
        resumed: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """Raises `OSError` if the lines of the former master cannot be copied."""
        self._start = start
        self._tell, self._told = tell, ""
        self._last = 0.0  # the time of the last line
        self._before = 0  # the last version of the former master's lines
        self.undone = 0  # merges that the run has lost by going back to a checkpoint, so far
        file = None
        if resumed:
            file, self._last, self._before, self.undone = _continued(folder / METRICS)
            self._start -= self._last
        self._file = LineFile(folder / METRICS, descriptor=file, lost=self._lost)
        self._file.flush()  # from now on the file is there
        self._results: dict[tuple[int, int], Trained] = {}  # that are held
        self._merged = (0, 0)  # the last version, and its iteration
        self._iterations: dict[int, int] = {}  # of the versions that are being tested

    def clock(self, at: datetime, now: float, records: int | None) -> None:
        """Write what a clock on the wall shows at `now`, so that the log can be laid beside other logs.

        And how many records an epoch has, None if that is not known: where the log is read, there may be no data.
        """
        self._write(now, "clock", {"at": at.isoformat(timespec="milliseconds"), "records": records})

    def resume(self, epoch: int, counters: Counters | None, now: float, cause: str = "") -> int:
        """The run continues from these counters, or begins anew; returns how many merges after them are undone.

        The `cause` is empty if a person has resumed it.
        """
        fields = ("version", "iteration", "samples")
        values = {name: 0 if counters is None else getattr(counters, name) for name in fields}
        self._merged = (values["version"], values["iteration"])
        undone = max(0, self._before - values["version"])
        self.undone += undone
        more: dict[str, Any] = {"undone": undone} if undone else {}
        if cause:
            more["cause"] = cause
        self._write(now, "resumed", {"epoch": epoch, **values, **more})
        return undone

    def make_up(self, merges: Sequence[Merge], now: float) -> None:
        """Write the lines of those merges of a former master that its death has kept from the log."""
        for merge in merges:
            if merge.version > self._before:
                self._merge(merge, now)

    def disown(self) -> None:
        """Write nothing more: the file is another master's."""
        self._file.disown()

    @property
    def lines_lost(self) -> int:
        """Lines that are in no file and will be in none."""
        return self._file.lines_lost

    @property
    def problem(self) -> str:
        """Why lines wait to be written; empty if none does."""
        return self._file.problem

    def saw(self, event: Event, now: float) -> None:
        match event:
            case Trained():
                # A repetition must not take the timings of the result that is still held.
                self._results.setdefault((event.worker, event.ticket), event)
                if len(self._results) > MOST_RESULTS:
                    del self._results[next(iter(self._results))]
            case Joined():
                where = {} if event.runs_at is None else asdict(event.runs_at)
                if not where.get("device"):  # with Caffe there is none
                    where.pop("device", None)
                self._write_fields(event, now, **where)
            case Tested():
                version, last = self._merged
                asked = self._iterations.pop(event.version, 0)
                iteration = last if event.version == version else asked
                self._write_fields(event, now, iteration=iteration, metrics=dict(event.metrics))
            case StoreTrouble():
                self._write_fields(event, now)
                self._file.flush()  # what it is written together with may last as long as the trouble
            case _:
                self._write_fields(event, now)

    def did(self, action: Action, now: float) -> None:
        match action:
            case Merge():
                self._merge(action, now)
            case Drop():
                if action.decision != "late":
                    self._results.pop((action.worker, action.ticket), None)
                self._write_fields(action, now)
            case Evaluate():
                self._iterations[action.version] = action.iteration
            case _:
                self._write_fields(action, now)

    def _merge(self, action: Merge, now: float) -> None:
        self._merged = (action.version, action.iteration)
        timings = action.timings or ({},) * len(action.parts)
        for part, own in zip(action.parts, timings, strict=True):
            result = self._results.pop((part.worker, part.ticket), None)
            fields: dict[str, Any] = {
                "decision": "merged",
                "worker": part.worker,
                "incarnation": part.incarnation,
                "ticket": part.ticket,
                "version": action.version,
                "iteration": action.iteration,
                "staleness": part.staleness,
                "samples": part.samples,
                "steps": part.steps,
                "loss": part.loss,
                "rate": action.rate,
                "timings": own if result is None else {**result.timings, **own},
            }
            if part.losses:
                fields["losses"] = part.losses
            if part.records:
                fields["records"] = part.records
            self._write(now, "result", fields)

    def together(self) -> AbstractContextManager[None]:
        """The lines of events inside are written at once, at its end."""
        return self._file.together()

    def close(self) -> bytes:
        """Try once more what waits, and close; the lines that could not be written."""
        return self._file.close()

    def _write(self, now: float, event: str, fields: Mapping[str, Any]) -> None:
        self._last = int(1e6 * (now - self._start) + 0.5) / 1e6  # `round` takes ten times as long
        self._file.write(line_of({"time": self._last, "event": event, **fields}))
        if bool(self._file.problem) != bool(self._told):
            self._told = self._file.problem and (
                f"{self._file.path} cannot be written ({self._file.problem}): its lines wait in memory; make room "
                "there or make it writable"
            )
            if self._tell is not None:
                self._tell(self._told)

    def _write_fields(self, told: Event | Action, now: float, **more: Any) -> None:
        """The line of `LINES` for this event, and `more`; nothing for what has no line."""
        if (line := LINES.get(type(told))) is not None:
            name, fields = line
            values = {field: getattr(told, field) for field in fields}
            if values.get("problem") == "":
                values["problem"] = None
            self._write(now, name, {**values, **more})

    def _lost(self, lines: int) -> bytes:
        return line_of({"time": self._last, "event": "lost", "lines": lines})


def keep_published(folder: Path, newest: int, merges: Sequence[Merge]) -> None:
    """Leave out, of a log that came from another machine, merged results that are to be made up, or do not count.

    Those are the results of versions above the `newest`, which were never published, and of a version of which only
    some have come, as `merges` shows. Raises `OSError`.
    """
    path = folder / METRICS
    lines = read_bytes(path).splitlines(keepends=True) if path.exists() else []
    versions = [_version_of(line) for line in lines]
    there = Counter(versions)
    parts = {merge.version: len(merge.parts) for merge in merges}
    kept = [
        line
        for line, version in zip(lines, versions, strict=True)
        if version is None or (version <= newest and there[version] >= parts.get(version, 0))
    ]
    if len(kept) < len(lines):
        with written_whole(path) as file:
            file.writelines(kept)


def _version_of(line: bytes) -> int | None:
    """That of a merged result; None for any other line."""
    if MERGED not in line[:200]:
        return None
    return int(_last([line], "version"))


def _continued(path: Path) -> tuple[int, float, int, int]:
    """The log so far in a new file, without a torn last line; its last time and version, and what was undone in it."""
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        data = b""
    lines = data.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        del lines[-1]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.writelines(lines)
        temporary.replace(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    return (
        descriptor,
        _last(lines, "time"),
        int(_last([one for one in lines[-LOOKED_AT:] if MERGED in one], "version")),
        sum(int(_last([one], "undone")) for one in lines if UNDONE in one),
    )


def _last(lines: Sequence[bytes], name: str) -> float:
    """The number of this name in the last line that has one; 0 if none does."""
    for line in reversed(lines):
        try:
            return number_of(values_of(line), name)
        except (ValueError, AttributeError, RecursionError):
            continue  # no line of ours
    return 0.0
