"""Means over the merged results since the last point: what one line of a log, or one point of a curve, says."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from speedo.messages import Merge, Train


@dataclass(frozen=True, slots=True)
class Point:
    """Means over the `iterations` and `seconds` that end at `iteration`: of the loss by samples, of the staleness by
    results."""

    iteration: int
    iterations: int
    seconds: float
    loss: float
    staleness: float
    images_per_s: float
    iterations_per_s: float


@dataclass(slots=True)
class Means:
    """Gathers merges; `iteration` is that of the last one, at the start that of the checkpoint."""

    iteration: int
    results: int = 0
    _samples: int = 0
    _loss: float = 0.0
    _staleness: int = 0
    _from: tuple[int, float] | None = field(default=None)

    def begin(self, action: Train, now: float) -> None:
        """Time is counted from the first turn."""
        if self._from is None:
            self._from = (self.iteration, now)

    def add(self, merge: Merge, now: float) -> None:
        if self._from is None:
            self._from = (self.iteration, now)
        self.iteration = merge.iteration
        for part in merge.parts:
            self.results += 1
            self._samples += part.samples
            self._loss += part.loss * part.samples
            self._staleness += part.staleness

    def since(self, now: float) -> float:
        """Seconds since the last point."""
        return 0.0 if self._from is None else now - self._from[1]

    def take(self, now: float) -> Point:
        """The point of what was gathered; the next one begins."""
        before, then = self._from or (self.iteration, now)
        seconds = max(now - then, 1e-6)
        point = Point(
            self.iteration,
            self.iteration - before,
            seconds,
            self._loss / self._samples if self._samples else math.nan,
            self._staleness / self.results if self.results else math.nan,
            self._samples / seconds,
            (self.iteration - before) / seconds,
        )
        self._from = (self.iteration, now)
        self.results, self._samples, self._loss, self._staleness = 0, 0, 0.0, 0
        return point


@dataclass(slots=True)
class TestedIterations:
    """Which iteration a tested version has."""

    last: tuple[int, int]  # the last version, and its iteration
    _asked: dict[int, int] = field(default_factory=dict)

    def ask(self, version: int, iteration: int) -> None:
        self._asked[version] = iteration

    def of(self, version: int) -> int:
        """The iteration of a version whose test has come."""
        asked = self._asked.pop(version, self.last[1])
        return self.last[1] if version == self.last[0] else asked
