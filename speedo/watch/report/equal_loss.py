"""Epochs and seconds to a loss, and the speed-up to equal loss.

Two measures of a loss, the same for every run that is compared:

*train*: the training loss, averaged over the last `window` images that were merged. The losses of single batches are
noisy; their mean over an epoch is not. Before this many images are merged it is the mean of all.

*test*: the loss of the test net at each test, and between two tests the line through both.

A run reaches a loss where its curve is at or below it for the first time; between two points the place is
interpolated. The epoch factor is epochs of sequential Caffe / epochs of the mode, the throughput factor images/s of the
mode / images/s of sequential Caffe. The speed-up to equal loss is their product.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from speedo.watch.report.run_history import RunHistory, loss_in

Measure = Literal["train", "test"]
Points = NDArray[np.float64]

# A run is at least this many windows long, or the window is shorter than an epoch.
MOST_WINDOWS: Final = 4


@dataclass(frozen=True, slots=True)
class LossCurve:
    """Loss against images, by rising images; NaN where it is not known."""

    images: Points
    loss: Points

    def reaches(self, target: float) -> float | None:
        """Images at which the loss is `target` or less for the first time; None if that never happens."""
        below = np.nonzero(self.loss <= target)[0]
        if not len(below):
            return None
        at = int(below[0])
        if at == 0 or not math.isfinite(self.loss[at - 1]):
            return float(self.images[at])
        before, after = self.loss[at - 1], self.loss[at]
        part = (before - target) / (before - after)
        return float(self.images[at - 1] + part * (self.images[at] - self.images[at - 1]))


@dataclass(frozen=True, slots=True)
class SeedRange:
    """A figure over seeds: mean, least and most, of `count` runs."""

    mean: float
    least: float
    most: float
    count: int


def window_of(images: float, records: int | None) -> float:
    """Images over which a training loss is averaged: an epoch, or a quarter of a run shorter than four.

    `images` are those of the shortest run that is compared; `records` are those of an epoch, None if not known.
    """
    part = images / MOST_WINDOWS
    return part if records is None else min(float(records), part)


def curve_of(run: RunHistory, measure: Measure, window: float) -> LossCurve:
    """The loss of a run by this measure; `window` is that of the training loss, in images."""
    return _tests(run) if measure == "test" else smoothed(run.ends, run.losses, window)


def smoothed(ends: Sequence[float], losses: Sequence[float], window: float) -> LossCurve:
    """The mean loss over the last `window` images, at the end of each piece.

    Piece k has the mean loss `losses[k]` over the images from `ends[k - 1]` to `ends[k]`; the first begins at 0.
    """
    edges = np.concatenate(([0.0], np.asarray(ends, np.float64)))
    area = np.concatenate(([0.0], np.cumsum(np.asarray(losses, np.float64) * np.diff(edges))))
    begins = np.maximum(edges - window, 0.0)
    width = edges - begins
    mean = (area[1:] - np.interp(begins, edges, area)[1:]) / width[1:]
    return LossCurve(edges[1:], mean)


def _tests(run: RunHistory) -> LossCurve:
    found = {one.images: loss_in(one.metrics) for one in run.tests}
    known = sorted((images, loss) for images, loss in found.items() if loss is not None)
    columns = np.asarray(known, np.float64).reshape(-1, 2)
    return LossCurve(columns[:, 0], columns[:, 1])


def seconds_at(run: RunHistory, images: float) -> float:
    """Seconds of training after which this many images were merged."""
    ends, moments = [0.0, *run.ends], [run.began, *run.seconds]
    return float(np.interp(images, ends, moments)) - run.began


def interval_of(values: Sequence[float]) -> SeedRange | None:
    """Over seeds; None without a value."""
    if not values:
        return None
    return SeedRange(statistics.fmean(values), min(values), max(values), len(values))


def ratios(
    above: Mapping[int | None, float], below: Mapping[int | None, float]
) -> SeedRange | None:
    """`above` over `below` for each seed that both have; where they share none, over the mean of `above`."""
    if not above or not below:
        return None
    shared = [seed for seed in below if seed in above]
    if shared:
        return interval_of([above[seed] / below[seed] for seed in shared])
    mean = statistics.fmean(above.values())
    return interval_of([mean / value for value in below.values()])


def product(first: SeedRange | None, second: SeedRange | None) -> SeedRange | None:
    """Two factors of the same seeds; its range is the widest that they allow."""
    if first is None or second is None:
        return None
    return SeedRange(
        first.mean * second.mean,
        first.least * second.least,
        first.most * second.most,
        min(first.count, second.count),
    )
