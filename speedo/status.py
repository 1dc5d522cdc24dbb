"""What a run looks like from outside at one moment: kept by the master, shown by the commands."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from speedo.messages import (
    Action,
    Drop,
    Event,
    Finish,
    Joined,
    Left,
    Merge,
    SetAside,
    Tested,
    Train,
)

RECENT_S = 10.0  # images/s and losses are means over so many of the latest seconds


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker as people see it; `state` is training, waiting or gone, with the cause."""

    worker: int
    host: str
    state: str
    merged: int
    dropped: int
    loss: float
    images_per_s: float


@dataclass(frozen=True, slots=True)
class Status:
    """A run at one moment. `epoch` is NaN if the number of records is not known."""

    state: str
    mode: str
    iteration: int
    max_iter: int
    epoch: float
    version: int
    loss: float
    images_per_s: float
    seconds: float
    tested_iteration: int
    metrics: Mapping[str, float]
    workers: tuple[WorkerStatus, ...]
    over: bool


@dataclass(slots=True)
class _Line:
    host: str = ""
    state: str = "waiting"
    merged: int = 0
    dropped: int = 0
    loss: float = float("nan")
    recent: deque[tuple[float, int]] = field(default_factory=deque)


@dataclass
class StatusBoard:
    """An observer that keeps the present state; written by one thread, read by others."""

    mode: str
    max_iter: int
    batch: int
    records: int | None = None
    state: str = "waiting for workers"
    iteration: int = 0
    samples: int = 0
    version: int = 0
    tested_iteration: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    over: bool = False
    _lines: dict[int, _Line] = field(default_factory=dict)
    _recent: deque[tuple[float, int, float]] = field(default_factory=deque)
    _iterations: dict[int, int] = field(default_factory=lambda: {0: 0})
    _first: float | None = None
    _now: float = 0.0

    def name_host(self, worker: int, host: str) -> None:
        self._lines.setdefault(worker, _Line()).host = host

    def saw(self, event: Event, now: float) -> None:
        match event:
            case Joined():
                self._lines.setdefault(event.worker, _Line()).state = "waiting"
            case Left():
                self._lines.setdefault(event.worker, _Line()).state = f"gone: {event.cause}"
            case Tested() if not event.problem:
                self.metrics = event.metrics
                self.tested_iteration = self._iterations.pop(event.version, self.iteration)
            case _:
                pass

    def did(self, action: Action, now: float) -> None:
        self._now = now
        match action:
            case Train():
                self._first = now if self._first is None else self._first
                self.state = "training"
                self._lines.setdefault(action.worker, _Line()).state = "training"
            case Merge():
                self._merged(action, now)
            case Drop():
                line = self._lines.setdefault(action.worker, _Line())
                line.dropped += 1
                self.dropped[action.decision] = self.dropped.get(action.decision, 0) + 1
            case SetAside():
                line = self._lines.setdefault(action.worker, _Line())
                line.state = f"gone: {action.reason}"
            case Finish():
                self.state = "testing the last version"
            case _:
                pass

    def _merged(self, action: Merge, now: float) -> None:
        self.iteration, self.version = action.iteration, action.version
        self.samples = action.samples_seen
        self._iterations = {action.version: action.iteration} | self._iterations
        for part in action.parts:
            line = self._lines.setdefault(part.worker, _Line())
            line.merged += 1
            line.loss = part.loss
            line.state = "waiting"
            line.recent.append((now, part.samples))
            while line.recent[0][0] < now - RECENT_S:
                line.recent.popleft()
            self._recent.append((now, part.samples, part.loss))
        while self._recent and self._recent[0][0] < now - RECENT_S:
            self._recent.popleft()
        if len(self._iterations) > 1000:
            self._iterations = dict(list(self._iterations.items())[:100])

    def status(self, now: float) -> Status:
        """The state as of `now`, on the clock of the events."""
        first = now if self._first is None else self._first
        window = max(min(RECENT_S, now - first), 1e-3)
        recent = [entry for entry in tuple(self._recent) if entry[0] >= now - RECENT_S]
        samples = sum(entry[1] for entry in recent)
        loss = sum(entry[2] * entry[1] for entry in recent) / samples if samples else float("nan")
        workers = tuple(
            WorkerStatus(
                worker,
                line.host,
                line.state,
                line.merged,
                line.dropped,
                line.loss,
                sum(count for time, count in tuple(line.recent) if time >= now - RECENT_S) / window,
            )
            for worker, line in sorted(self._lines.items())
        )
        return Status(
            self.state,
            self.mode,
            self.iteration,
            self.max_iter,
            self.samples / self.records if self.records else float("nan"),
            self.version,
            loss,
            samples / window,
            now - first,
            self.tested_iteration,
            self.metrics,
            workers,
            self.over,
        )
