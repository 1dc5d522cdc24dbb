"""Which series are drawn together, in which colours, and their lines: means over seeds with the range between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from speedo.watch.report.charts import COLOURS, PlottedLine
from speedo.watch.report.equal_loss import seconds_at
from speedo.watch.report.figures import SEQUENTIAL, Figures, Series
from speedo.watch.report.run_history import RunHistory

POINTS: Final = 200  # of a line, at most
STRETCHES: Final = 60  # of a run's time, for each of which images/s are drawn
# Series that one panel holds; with more there is a panel for each number of workers.
ALL_IN_ONE: Final = 6
DASHES: Final = 4

Axis = Literal["epochs", "seconds"]


@dataclass(frozen=True, slots=True)
class Ink:
    """How a series is drawn, everywhere."""

    label: str
    colour: int
    dash: int


@dataclass(frozen=True, slots=True)
class Panel:
    """Series that share axes; `title` is empty where there is one panel only."""

    title: str
    series: tuple[Series, ...]


class Panels:
    """The panels of a page, and the ink of each series: the same name has the same ink in all of them."""

    def __init__(self, figures: Figures) -> None:
        self.figures = figures
        drawn = [one for one in figures.series if any(run.ends for run in one.runs)]
        self.together = len(drawn) <= ALL_IN_ONE
        self.all = self._panels(drawn)
        names = [self.name(one) for one in drawn if one is not figures.reference]
        order = {name: place for place, name in enumerate(dict.fromkeys(names))}
        self._order = order

    def name(self, one: Series) -> str:
        """Its name in legends."""
        return one.label if self.together else one.short

    def ink(self, one: Series) -> Ink:
        if one is self.figures.reference:
            return Ink(one.label, 0, 0)
        place = self._order.get(self.name(one), 0)
        return Ink(self.name(one), 1 + place % (COLOURS - 1), place % DASHES)

    def legend(self) -> list[Ink]:
        """Each ink once, the reference first."""
        inks = [self.ink(one) for panel in self.all for one in panel.series]
        return list(dict.fromkeys(inks))

    def _panels(self, drawn: Sequence[Series]) -> list[Panel]:
        if self.together:
            return [Panel("", tuple(drawn))] if drawn else []
        reference = self.figures.reference
        counts = sorted({one.workers for one in drawn if one.mode != SEQUENTIAL})
        found = []
        for count in counts:
            those = [one for one in drawn if one.workers == count and one.mode != SEQUENTIAL]
            others = [one for one in those if one is not reference]
            title = "1 worker" if count == 1 else f"{count} workers"
            found.append(Panel(title, (reference, *others)))
        return found

    def losses(self, panel: Panel, axis: Axis) -> list[PlottedLine]:
        """The curves that the loss is compared by."""
        return [line for one in panel.series if (line := self._loss(one, axis)) is not None]

    def accuracies(self, panel: Panel, axis: Axis) -> list[PlottedLine]:
        """Accuracy at each test; means over the seeds that were tested after as many images."""
        return [line for one in panel.series if (line := self._accuracy(one, axis)) is not None]

    def rates(self, panel: Panel) -> list[PlottedLine]:
        """Images/s over equal stretches of the time of each series' first run."""
        found = []
        for one in panel.series:
            run = one.runs[0]
            seconds = np.subtract(run.seconds, run.began)
            if one.forecast is None and len(seconds) and seconds[-1] > 0:
                images = np.diff([0.0, *run.ends])
                totals, edges = np.histogram(seconds, STRETCHES, (0, seconds[-1]), weights=images)
                middles = (edges[1:] + edges[:-1]) / 2
                found.append(self._line(one, list(middles), np.array([totals / edges[1]])))
        return found

    def _x(self, one: Series, run: RunHistory, axis: Axis) -> Callable[[float], float]:
        if axis == "epochs":
            return lambda images: images / self.figures.scale
        if one.forecast is not None:
            rate = one.forecast.images_per_s
            return lambda images: images / rate
        return lambda images: seconds_at(run, images)

    def _loss(self, one: Series, axis: Axis) -> PlottedLine | None:
        pairs = [(r, c) for r, c in zip(one.runs, one.curves, strict=True) if len(c.images)]
        if not pairs:
            return None
        grid = pairs[0][1].images
        if len(pairs) > 1 or len(grid) > POINTS:
            first = max(float(curve.images[0]) for _, curve in pairs)
            last = min(float(curve.images[-1]) for _, curve in pairs)
            grid = np.linspace(first, max(last, first), POINTS)
        values = np.array([np.interp(grid, curve.images, curve.loss) for _, curve in pairs])
        across = np.mean([[self._x(one, r, axis)(x) for x in grid] for r, _ in pairs], axis=0)
        return self._line(one, list(across), values)

    def _accuracy(self, one: Series, axis: Axis) -> PlottedLine | None:
        found: dict[int, list[tuple[float, float]]] = {}
        for run in one.runs:
            # Asynchronous runs are tested a few images later than they should: to the nearest hundredth of an epoch.
            for images, _, value in run.accuracies():
                place = round(100 * images / self.figures.scale)
                found.setdefault(place, []).append((self._x(one, run, axis)(images), value))
        most = max((len(several) for several in found.values()), default=0)
        whole = [found[place] for place in sorted(found) if len(found[place]) == most]
        if not whole:
            return None
        across = [float(np.mean([x for x, _ in several])) for several in whole]
        values = np.array([[value for _, value in several] for several in whole]).T
        return self._line(one, across, values, dots=True)

    def _line(
        self, one: Series, across: Sequence[float], values: np.ndarray, dots: bool = False
    ) -> PlottedLine:
        ink, several = self.ink(one), len(values) > 1
        mean = values.mean(axis=0)
        return PlottedLine(
            ink.label, ink.colour, ink.dash, [float(x) for x in across], [float(y) for y in mean],
            [float(y) for y in values.min(axis=0)] if several else (),
            [float(y) for y in values.max(axis=0)] if several else (),
            dots,
        )  # fmt: skip


def staleness_shares(one: Series) -> list[tuple[str, float]]:
    """Shares of the merged results by staleness, in at most a dozen bars."""
    counts = one.staleness
    total, most = sum(counts.values()), max(counts, default=0)
    if not total:
        return []
    width = math.ceil((most + 1) / 12)
    bars: dict[int, int] = dict.fromkeys(range(most // width + 1), 0)
    for value, count in counts.items():
        bars[value // width] += count
    return [(str(place * width), count / total) for place, count in bars.items()]
