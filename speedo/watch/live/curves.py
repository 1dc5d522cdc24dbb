"""Curves of bounded length: what is added is gathered in bins, which widen as the run gets longer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

MOST: Final = 400  # points of a curve: more than a screen shows apart
Point = tuple[int, float, float]  # iteration, seconds, value
_generations = itertools.count(1)


@dataclass
class MeanCurve:
    """Means over equal stretches of iterations.

    All points but the last are final within a `generation`. A new one begins when points are merged or taken back.
    """

    generation: int = field(default_factory=lambda: next(_generations))
    _width: int = 1
    _bins: list[list[float]] = field(default_factory=list)  # iteration, seconds, sum, weight

    def add(self, iteration: int, seconds: float, value: float, weight: float = 1.0) -> None:
        """A value of this weight, above 0."""
        last = self._bins[-1] if self._bins else None
        if last is not None and iteration // self._width <= int(last[0]) // self._width:
            last[:] = [iteration, seconds, last[2] + value * weight, last[3] + weight]
            return
        self._bins.append([iteration, seconds, value * weight, weight])
        if len(self._bins) > MOST:
            self._widen()

    def cut(self, iteration: int) -> None:
        """Take back what came after this iteration."""
        kept = [one for one in self._bins if one[0] <= iteration]
        if len(kept) < len(self._bins):
            self._bins, self.generation = kept, next(_generations)

    def points(self, first: int = 0) -> list[Point]:
        """The points from this one on."""
        return [(int(one[0]), one[1], one[2] / one[3]) for one in self._bins[first:]]

    def __len__(self) -> int:
        return len(self._bins)

    def _widen(self) -> None:
        self._width *= 2
        merged: list[list[float]] = []
        for one in self._bins:
            if merged and int(one[0]) // self._width == int(merged[-1][0]) // self._width:
                last = merged[-1]
                merged[-1] = [one[0], one[1], last[2] + one[2], last[3] + one[3]]
            else:
                merged.append(one)
        self._bins, self.generation = merged, next(_generations)
        if len(merged) > MOST:
            self._widen()


@dataclass
class RateCurve:
    """Samples per second over equal stretches of time, a second each at first; `iteration` is that of the end."""

    generation: int = field(default_factory=lambda: next(_generations))
    _width: float = 1.0
    _sums: list[list[float]] = field(default_factory=list)  # iteration, samples

    def add(self, iteration: int, seconds: float, samples: float) -> None:
        """This many samples at this time, from 0 on."""
        while seconds / self._width >= MOST:
            self._width *= 2
            pairs = itertools.zip_longest(self._sums[::2], self._sums[1::2])
            self._sums = [one if two is None else [two[0], one[1] + two[1]] for one, two in pairs]
            self.generation = next(_generations)
        place = int(seconds / self._width)
        while len(self._sums) <= place:
            self._sums.append([iteration, 0.0])
        self._sums[place][0] = iteration
        self._sums[place][1] += samples

    def points(self, first: int = 0) -> list[Point]:
        """The points from this one on; the stretch that is not over yet has none."""
        return [
            (int(one[0]), (first + place + 0.5) * self._width, one[1] / self._width)
            for place, one in enumerate(self._sums[first:-1])
        ]

    def __len__(self) -> int:
        return max(len(self._sums) - 1, 0)


@dataclass
class Sent:
    """What of the curves a reader has already, so that it is sent no point twice."""

    _seen: dict[str, tuple[int, int, Point | None]] = field(default_factory=dict)

    def news(
        self, curves: Sequence[tuple[str, MeanCurve | RateCurve]]
    ) -> dict[str, dict[str, object]]:
        """By the name of a curve: the place `from` which on the reader is to replace its points. Nothing: not changed.

        Curves that are gone come with no points.
        """
        found: dict[str, dict[str, object]] = {}
        for name, curve in curves:
            generation, count, last = self._seen.get(name, (0, 0, None))
            # The last point may have grown since.
            first = max(count - 1, 0) if generation == curve.generation else 0
            points = curve.points(first)
            if generation not in (0, curve.generation) or points not in ([], [last]):
                found[name] = {"from": first, "points": points}
            self._seen[name] = (curve.generation, len(curve), points[-1] if points else None)
        for name in self._seen.keys() - {name for name, _ in curves}:
            del self._seen[name]
            found[name] = {"from": 0, "points": []}
        return found
