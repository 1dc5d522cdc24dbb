"""A picture of what happened: loss, accuracy, speed and staleness of one or several runs, from their metrics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from speedo.errors import DataError
from speedo.runlog import METRICS

SMOOTH: Final = 50  # a loss is drawn as the mean of so many results
BINS: Final = 60  # images/s are drawn for so many stretches of a run


@dataclass
class RunTrace:
    """What the metrics of a run say, as columns: merged results, and tests."""

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
    """Read a run directory's `metrics.jsonl`; a last line that was cut short is left out.

    Raises `DataError` if it is no run directory or holds no merged result.
    """
    path = folder / METRICS
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(
            f"{folder} is no run directory: {path.name} cannot be read ({error.strerror}); give what --run-dir was"
        ) from None
    trace = RunTrace(folder.resolve().name)
    for number, line in enumerate(lines, 1):
        try:
            _take(trace, json.loads(line))
        except (ValueError, KeyError, TypeError):
            if number != len(lines):
                raise DataError(f"{path}, line {number} is no line of metrics: remove it") from None
    if not trace.loss:
        raise DataError(f"{path} holds no merged result yet: there is nothing to draw")
    return trace


def _take(trace: RunTrace, line: dict[str, Any]) -> None:
    event = line["event"]
    if event == "result" and line["decision"] == "merged":
        trace.iteration.append(line["iteration"])
        trace.seconds.append(line["time"])
        trace.loss.append(float("nan") if line["loss"] is None else line["loss"])
        trace.samples.append(line["samples"])
        trace.staleness.append(line["staleness"])
    elif event == "test":
        scores = [value for name, value in line["metrics"].items() if "acc" in name.lower()]
        if scores:
            trace.test_iteration.append(line["iteration"])
            trace.accuracy.append(scores[-1])
    elif event == "left":
        trace.left.append(line["time"])


def draw(runs: Sequence[Path], target: Path) -> Path:
    """Draw the runs into one picture (PNG, PDF or SVG, by the name of `target`). Raises `DataError`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    traces = [read_run(run) for run in runs]
    figure, axes = pyplot.subplots(2, 2, figsize=(12, 8), layout="constrained")
    loss, accuracy, speed, stale = axes.flat
    for trace in traces:
        loss.plot(_means(trace.iteration, SMOOTH), _means(trace.loss, SMOOTH), label=trace.name)
        accuracy.plot(trace.test_iteration, trace.accuracy, marker="o", label=trace.name)
        times, rates = _rates(trace)
        (line,) = speed.plot(times, rates, label=trace.name)
        for moment in trace.left:
            speed.axvline(moment, color=line.get_color(), linestyle=":", linewidth=1)
    most = max(max(trace.staleness) for trace in traces)
    stale.hist([trace.staleness for trace in traces], bins=range(most + 2), align="left")
    stale.xaxis.get_major_locator().set_params(integer=True)
    for axis, title, across in (
        (loss, f"training loss, means of {SMOOTH} results", "iteration"),
        (accuracy, "test accuracy", "iteration"),
        (speed, "images/s (dotted: a worker left)", "seconds"),
        (stale, "results by staleness", "staleness"),
    ):
        axis.set_title(title)
        axis.set_xlabel(across)
        axis.grid(alpha=0.3)
    loss.legend()
    try:
        figure.savefig(target, dpi=120)
    except (OSError, ValueError) as error:
        raise DataError(f"the picture {target} cannot be written: {error}") from None
    finally:
        pyplot.close(figure)
    return target


def _means(values: Sequence[float], count: int) -> list[float]:
    """Means of consecutive groups; short runs are drawn as they are."""
    if len(values) < 4 * count:
        return list(values)
    return [
        sum(values[start : start + count]) / count
        for start in range(0, len(values) - count + 1, count)
    ]


def _rates(trace: RunTrace) -> tuple[list[float], list[float]]:
    """Images/s over equal stretches of time."""
    first, last = trace.seconds[0], trace.seconds[-1]
    width = max(last - first, 1e-6) / BINS
    totals = [0.0] * BINS
    for moment, samples in zip(trace.seconds, trace.samples, strict=True):
        totals[min(int((moment - first) / width), BINS - 1)] += samples
    return [first + (place + 0.5) * width for place in range(BINS)], [t / width for t in totals]
