"""What the log of a run says so far: its curves, and each worker; read as it grows, never twice."""

from __future__ import annotations

import math
import os
import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from caffenets.files import open_to_read
from speedo.run_dir.directory import METRICS
from speedo.run_dir.events import (
    SCRIPT_ENDED,
    EventReader,
    ModelTested,
    ResultDropped,
    ResultMerged,
    RunEvent,
    RunFinished,
    RunResumed,
    WorkerJoined,
    WorkerLeft,
)
from speedo.run_dir.read_back import MOST_LINE_BYTES, object_in
from speedo.watch.live.curves import MeanCurve, RateCurve

RECENT_RESULTS: Final = 20  # staleness is the mean of this many
PACE_S: Final = 60.0  # the time left is computed from the iterations of this many seconds
MOST_BYTES: Final = 4 << 20  # read at a time
MOST_WORKERS: Final = 10_000
MOST_STALENESS: Final = 16  # what is staler is counted there


@dataclass
class WorkerHistory:
    """A worker by the log. `died` is the log's time of its last death, `cause` why; `deaths` counts them."""

    host: str = ""
    there: bool = False
    merged: int = 0
    dropped: int = 0
    loss: float = math.nan
    deaths: int = 0
    cause: str = ""
    died: float = 0.0
    _staleness: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_RESULTS))

    @property
    def staleness(self) -> float:
        """Of its latest merged results; NaN without any."""
        return sum(self._staleness) / len(self._staleness) if self._staleness else math.nan

    def merge(self, staleness: int, loss: float) -> None:
        """One result more."""
        self.merged += 1
        self.loss = loss
        self._staleness.append(staleness)


@dataclass
class LogHistory:
    """The content of a log. A line that no run writes is skipped."""

    loss: MeanCurve = field(default_factory=MeanCurve)
    speed: RateCurve = field(default_factory=RateCurve)
    tests: dict[str, MeanCurve] = field(default_factory=dict)
    workers: dict[int, WorkerHistory] = field(default_factory=dict)
    decisions: Counter[str] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)
    iteration: int = 0
    version: int = 0
    time: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    tested_iteration: int = 0
    resumed: int = 0
    finished: str = ""  # the reason, once the run has ended
    _pace: deque[tuple[float, int]] = field(default_factory=deque)

    def curves(self) -> list[tuple[str, MeanCurve | RateCurve]]:
        """All curves by name; those of tests are `test/` and the output."""
        tests = [(f"test/{name}", curve) for name, curve in self.tests.items()]
        return [("loss", self.loss), ("images/s", self.speed), *tests]

    @property
    def iterations_per_s(self) -> float:
        """Over the last minute; 0 if that is not known."""
        if len(self._pace) < 2 or self._pace[-1][0] <= self._pace[0][0]:
            return 0.0
        (then, first), (now, last) = self._pace[0], self._pace[-1]
        return (last - first) / (now - then)

    def take(self, event: RunEvent) -> None:
        """One record of the log."""
        now = event.seconds
        match event:
            case ResultMerged():
                self._merged(event)
            case ResultDropped():
                self._worker(event.worker).dropped += 1
                self.decisions[event.decision] += 1
            case ModelTested():
                for name, value in event.metrics.items():
                    if not math.isnan(value):
                        self.tests.setdefault(name, MeanCurve()).add(event.iteration, now, value)
                self.metrics, self.tested_iteration = event.metrics, event.iteration
            case WorkerJoined():
                worker = self._worker(event.worker)
                worker.there = True
                worker.host = event.host or worker.host
            case WorkerLeft():
                worker = self._worker(event.worker)
                worker.there = False
                if event.cause != SCRIPT_ENDED:
                    worker.died, worker.cause, worker.deaths = now, event.cause, worker.deaths + 1
            case RunResumed():
                self._resume(event)
            case RunFinished():
                self.finished = event.reason
            case _:
                pass
        self.time = max(self.time, now)

    def _merged(self, event: ResultMerged) -> None:
        now, iteration, staleness = event.seconds, event.iteration, event.staleness
        self._worker(event.worker).merge(staleness, event.loss)
        self.decisions["merged"] += 1
        self.staleness[min(staleness, MOST_STALENESS)] += 1
        self.iteration, self.version = iteration, event.version
        if event.samples and not math.isnan(event.loss):
            self.loss.add(iteration, now, event.loss, event.samples)
        self.speed.add(iteration, max(now, 0.0), event.samples)
        self._pace.append((now, iteration))
        while self._pace[0][0] < now - PACE_S:
            self._pace.popleft()

    def _resume(self, event: RunResumed) -> None:
        """What was merged after the checkpoint is undone, and no worker has joined the new master yet."""
        self.iteration, self.version = event.iteration, event.version
        for curve in (self.loss, *self.tests.values()):
            curve.cut(event.iteration)
        for worker in self.workers.values():
            worker.there = False
        self._pace.clear()
        self.resumed += 1
        self.finished = ""

    def _worker(self, worker: int) -> WorkerHistory:
        """Raises `ValueError` for a number that no run gives."""
        if worker >= MOST_WORKERS:
            raise ValueError("a worker that no run has")
        return self.workers.setdefault(worker, WorkerHistory())


class LogReader:
    """Follows `metrics.jsonl` of a run directory, also where a resumed master has put another in its place."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / METRICS
        self._at, self._inode, self._size = 0, 0, 0
        self._rest = b""
        self._changed_at = time.time()
        self._events, self.history = EventReader(folder), LogHistory()

    def read(self) -> bool:
        """Take what is new, some MB at most; returns whether there is more. A log that is missing is empty."""
        try:
            with open_to_read(self._path) as file:
                facts = os.fstat(file.fileno())
                if facts.st_ino != self._inode or facts.st_size < self._at:
                    self._at, self._rest = 0, b""
                    self._events, self.history = EventReader(self._path.parent), LogHistory()
                self._inode, self._size = facts.st_ino, facts.st_size
                self._changed_at = facts.st_mtime
                file.seek(self._at)
                data = file.read(MOST_BYTES)
        except OSError:
            return False
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MOST_LINE_BYTES:
            self._rest = b""
        for line in lines:
            with suppress(ValueError):  # one that was edited
                if (values := object_in(line)) is not None:
                    self.history.take(self._events.event(values))
        return self._at < self._size

    @property
    def fraction(self) -> float:
        """How much of the log is read, 0 to 1."""
        return min(self._at / self._size, 1.0) if self._size else 1.0

    def seconds_ago(self, moment: float) -> float:
        """How long ago a time of the log was; the log's last line is as old as its file's time."""
        return max(time.time() - self._changed_at + self.history.time - moment, 0.0)
