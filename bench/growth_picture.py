"""The figures of `bench.growth` as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np

from bench.growth import Line

matplotlib.use("Agg")
from matplotlib import pyplot

Point = tuple[int, float, float]  # workers, milliseconds per exchange, the master's share of a core


def draw(
    path: Path,
    times: Mapping[float, Sequence[float]],
    line: Line,
    modes: Mapping[str, Sequence[Point]],
) -> None:
    """Two panels as PNG: milliseconds against MB with the fitted line, and against workers for each mode."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    if times:
        x = np.array(list(times))
        middle = np.array([statistics.median(one) for one in times.values()])
        below = middle - [min(one) for one in times.values()]
        above = [max(one) for one in times.values()] - middle
        left.errorbar(x, middle, [below, above], fmt="o", label="measured, least to most")
        wide = np.geomspace(x.min(), x.max(), 50)
        fitted = f"{line.constant:.2f} ms + {line.per_mb:.3f} ms per MB"
        left.plot(wide, line.constant + line.per_mb * wide, label=fitted)
        left.set(xscale="log", yscale="log", xlabel="model, MB", ylabel="exchange, ms")
        left.legend()
    shares = right.twinx()
    for mode, points in modes.items():
        workers = [point[0] for point in points]
        (drawn,) = right.plot(workers, [point[1] for point in points], "o-", label=mode)
        shares.plot(workers, [point[2] for point in points], "x--", color=drawn.get_color())
    ticks = sorted({point[0] for points in modes.values() for point in points})
    right.set(xlabel="workers", ylabel="exchange, ms (points)", xticks=ticks)
    most = max((point[1] for points in modes.values() for point in points), default=1.0)
    right.set_ylim(0, 1.15 * most)
    shares.set(ylabel="master's share of a core (crosses)", ylim=(0, 1.05))
    if modes:
        right.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
