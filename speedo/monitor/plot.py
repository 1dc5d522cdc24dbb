"""Plots loss, accuracy, speed and staleness of one or several runs from their metrics."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from speedo.errors import DataError
from speedo.foreign_text import MOST_NAME, clean_text
from speedo.run_dir.directory import METRICS
from speedo.run_dir.read_back import (
    count_of,
    json_lines,
    metrics_of,
    number_of,
    optional_number_of,
)
from speedo.system.files import open_to_write
from speedo.system.remedies import needed

SMOOTH: Final = 50  # a loss is drawn as the mean of so many results
FORMS: Final = ("png", "pdf", "svg")
MOST_BARS: Final = 200  # of the histogram of staleness
BINS: Final = 60  # images/s are drawn for so many stretches of a run
TICKS: Final = 5  # on each axis, at most
# Told apart by eyes that see no red or green; the lines differ in their dashes, too.
INKS: Final = ("#0068b0", "#cc5200", "#007f5c", "#b0468a", "#9a7500", "#3b8ec2", "#7a5cc4")
DASHES: Final[tuple[Any, ...]] = ("-", (0, (6, 2)), (0, (2, 2)), (0, (7, 2, 2, 2)))


@dataclass
class RunTrace:
    """The metrics of a run as columns: merged results, and tests."""

    name: str
    iteration: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    test_iteration: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)


def read_run(folder: Path) -> RunTrace:
    """Read a run directory's `metrics.jsonl`; an incomplete last line is skipped.

    Raises `DataError` if it is not a run directory or holds no merged result.
    """
    path = folder / METRICS
    trace = RunTrace(_label(os.path.basename(os.path.realpath(folder))))
    try:
        for number, whole, line in json_lines(path):
            if line is not None or whole:
                _take_checked(trace, line, f"{path}, line {number}")
    except OSError as error:
        raise DataError(
            f"{folder} is not a run directory: {path.name} cannot be read ({error.strerror}); "
            "give the value of --run-dir"
        ) from None
    if not trace.loss:
        raise DataError(f"{path} holds no merged result yet: there is nothing to plot")
    return trace


def _label(name: str) -> str:
    """A name for matplotlib, which leaves those that begin with `_` out of legends."""
    text = clean_text(name, MOST_NAME)
    return f" {text}" if text.startswith("_") else text


def _take_checked(trace: RunTrace, line: dict[str, Any] | None, place: str) -> None:
    try:
        if line is None:
            raise ValueError("no JSON object")
        _take(trace, line)
    except ValueError as error:
        raise DataError(f"{place} is not a line of metrics ({error}): remove it") from None


def _take(trace: RunTrace, line: dict[str, Any]) -> None:
    """Raises `ValueError`, and adds nothing, if a field has a value that a run never writes."""
    event = line.get("event")
    if event == "result" and line.get("decision") == "merged":
        iteration, seconds = count_of(line, "iteration"), number_of(line, "time")
        loss = optional_number_of(line, "loss")
        samples, staleness = count_of(line, "samples"), count_of(line, "staleness")
        trace.iteration.append(iteration)
        trace.seconds.append(seconds)
        trace.loss.append(loss)
        trace.samples.append(samples)
        trace.staleness.append(staleness)
    elif event == "test":
        metrics = metrics_of(line)
        names = [name for name in metrics if "acc" in name.lower()]
        if names:
            accuracy = metrics[names[-1]]
            trace.test_iteration.append(count_of(line, "iteration"))
            trace.accuracy.append(accuracy)
    elif event == "left":
        trace.left.append(number_of(line, "time"))


def draw(runs: Sequence[Path], target: Path) -> Path:
    """Draw the runs into one picture (PNG, PDF or SVG, by the name of `target`). Raises `DataError`."""
    form = target.suffix.lower().removeprefix(".")
    if form not in FORMS:
        raise DataError(f"the picture {target} cannot be written: name it {' or '.join(FORMS)}")
    matplotlib = needed("matplotlib", "plot", "a picture")
    matplotlib.use("Agg")
    matplotlib.rcParams["text.parse_math"] = False  # `$` in a name is no formula
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    traces = [read_run(run) for run in runs]
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8), layout="constrained")
    figure.suptitle(traces[0].name if len(traces) == 1 else f"{len(traces)} runs")
    loss, accuracy, speed, stale = axes.flat
    furthest = max(max(trace.iteration) for trace in traces)
    for place, trace in enumerate(traces):
        ink: dict[str, Any] = {
            "color": INKS[place % len(INKS)],
            "linestyle": DASHES[place % len(DASHES)],
            "label": trace.name,
        }
        loss.plot(_means(trace.iteration, SMOOTH), _means(trace.loss, SMOOTH), **ink)
        accuracy.plot(trace.test_iteration, trace.accuracy, marker="o", markersize=5, **ink)
        times, rates = _rates(trace)
        speed.plot(times, rates, **ink)
        for moment in trace.left:
            speed.axvline(moment, color=ink["color"], linestyle=":", linewidth=1)
    most = max(max(trace.staleness) for trace in traces)
    stale.hist(
        [trace.staleness for trace in traces],
        bins=_bins(most),
        align="left",
        color=[INKS[place % len(INKS)] for place in range(len(traces))],
    )
    for axis, title, across, up in (
        (loss, f"Training loss, means of {SMOOTH} results", "iterations", "loss"),
        (accuracy, "Test accuracy", "iterations", "accuracy"),
        (speed, _speed_title(traces), "seconds of training", "images/s"),
        (stale, "Staleness of the merged results", "results in between", "results"),
    ):
        axis.set_title(title, fontsize=11, loc="left")
        axis.set_xlabel(across)
        axis.set_ylabel(up)
        axis.locator_params(nbins=TICKS)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    for axis in (loss, accuracy):
        axis.set_xlim(0, 1.03 * max(furthest, 1))
    if not any(trace.accuracy for trace in traces):
        accuracy.text(
            0.5, 0.5, "no test with an accuracy", ha="center", transform=accuracy.transAxes
        )
    speed.set_ylim(bottom=0)
    stale.xaxis.set_major_locator(MaxNLocator(nbins=TICKS, integer=True))
    if len(traces) > 1:
        loss.legend(frameon=False)
    try:
        with open_to_write(target) as file:
            figure.savefig(file, dpi=120, format=form)
    except OSError as error:
        raise DataError(f"the picture {target} cannot be written: {error.strerror}") from None
    finally:
        pyplot.close(figure)
    return target


def _speed_title(traces: Sequence[RunTrace]) -> str:
    dotted = " (dotted: a worker left)" if any(trace.left for trace in traces) else ""
    return f"Images per second{dotted}"


def _bins(most: int) -> Sequence[float]:
    """Edges of the bars: one for each staleness, or wider ones if there are many values."""
    width = -(-(most + 1) // MOST_BARS)
    return [width * place for place in range(-(-(most + 1) // width) + 1)]


def _means(values: Sequence[float], count: int) -> list[float]:
    """Means of consecutive groups; short runs are drawn without averaging."""
    if len(values) < 4 * count:
        return list(values)
    return [
        sum(values[start : start + count]) / count
        for start in range(0, len(values) - count + 1, count)
    ]


def _rates(trace: RunTrace) -> tuple[list[float], list[float]]:
    """Images/s over equal stretches of time."""
    first, last = min(trace.seconds), max(trace.seconds)
    width = max(last - first, 1e-6) / BINS
    totals = [0.0] * BINS
    for moment, samples in zip(trace.seconds, trace.samples, strict=True):
        totals[min(max(int((moment - first) / width), 0), BINS - 1)] += samples
    return [first + (place + 0.5) * width for place in range(BINS)], [t / width for t in totals]
