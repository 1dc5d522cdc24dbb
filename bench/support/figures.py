"""From what a run left to its figures: images per second, where a turn's time goes, ratios within a round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from speedo.run_dir.events import (
    ResultDropped,
    ResultMerged,
    RunFinished,
    WorkerLeft,
    read_events,
)

WARM_UP = 0.2  # of the time in which all train: not counted
FEWEST = 3  # turns of each worker that a figure needs
WORKERS_PARTS = ("fetch", "compute", "publish")
PARTS = ("turn", *WORKERS_PARTS, "rest")  # what else a run has measured splits the rest

End = tuple[float, int]  # when a turn ended, in seconds, and its images that count


class MeasureError(Exception):
    """A measurement that gives no figure; says why."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement. `parts` is in ms, a median over the turns of all workers; `discarded` is a share.

    `core` is the share of a core that the worst off of the plain processes got; NaN for a mode. `beside` are the
    images/s of what it is compared with, by name, where that was measured right before and right after it.
    """

    images_per_s: float
    parts: Mapping[str, float]
    discarded: float = 0.0
    core: float = math.nan
    beside: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of ratios that were taken round by round, and how far they lie apart."""

    median: float
    least: float
    most: float


@dataclass(slots=True)
class _Turns:
    """One worker's turns: when each ended with how many merged images, and the timings of the merged ones."""

    ends: list[End] = field(default_factory=list)
    timings: list[Mapping[str, float] | None] = field(default_factory=list)


def window_of(workers: Sequence[Sequence[End]]) -> tuple[float, float]:
    """The time in which all workers train, without its first fifth; raises `MeasureError` if there is none."""
    if not workers or not all(workers):
        raise MeasureError("a worker has trained nothing")
    begin, end = max(ends[0][0] for ends in workers), min(ends[-1][0] for ends in workers)
    if end <= begin:
        raise MeasureError("the workers did not train at the same time")
    return begin + WARM_UP * (end - begin), end


def images_per_s(workers: Sequence[Sequence[End]]) -> float:
    """The sum of the workers' rates, each from the end of a turn of its own to the end of another."""
    begin, end = window_of(workers)
    total = 0.0
    for ends in workers:
        inside = [turn for turn in ends if begin <= turn[0] <= end]
        if len(inside) < FEWEST:
            raise MeasureError(
                f"{len(inside)} turns of a worker are too few for a figure: more --seconds"
            )
        total += sum(images for _, images in inside[1:]) / (inside[-1][0] - inside[0][0])
    return total


def steps_measured(
    processes: Sequence[Sequence[float]], batches: Sequence[int], core: float
) -> Measured:
    """Plain processes: the ends of each one's steps, its batch, and the least share of a core."""
    workers = [
        [(end, batch) for end in ends] for ends, batch in zip(processes, batches, strict=True)
    ]
    rate = images_per_s(workers)
    begin, end = window_of(workers)
    steps = [
        second - first
        for ends in processes
        for first, second in pairwise(ends)
        if begin <= first and second <= end
    ]
    step = 1000.0 * statistics.median(steps)
    return Measured(rate, {"turn": step, "compute": step}, core=core)


def run_measured(run_dir: Path, expected: int) -> Measured:
    """A run of `expected` workers by its log; raises `MeasureError`."""
    workers: dict[int, _Turns] = {}
    for event in read_events(run_dir):
        match event:
            case RunFinished():
                break
            case WorkerLeft():
                raise MeasureError(f"worker {event.worker} was lost: {event.cause}")
            case ResultMerged():
                turns = workers.setdefault(event.worker, _Turns())
                turns.ends.append((event.seconds, event.samples))
                turns.timings.append(event.timings)
            case ResultDropped():
                turns = workers.setdefault(event.worker, _Turns())
                turns.ends.append((event.seconds, 0))
                turns.timings.append(None)
    if len(workers) != expected:
        raise MeasureError(f"{len(workers)} of {expected} workers have trained")
    ends = [turns.ends for turns in workers.values()]
    begin, end = window_of(ends)
    counted = [images > 0 for one in ends for time, images in one if begin <= time <= end]
    rows = [row for turns in workers.values() for row in _parts(turns, begin, end)]
    if not rows:
        raise MeasureError("no two results of a worker follow each other")
    return Measured(images_per_s(ends), _medians(rows), counted.count(False) / len(counted))


def _parts(turns: _Turns, begin: float, end: float) -> list[dict[str, float]]:
    """Seconds of each merged turn in the window: from result to result, and where they went.

    `rest` is all that the worker did not see: messages, the master's merge, and waiting for others. Whatever
    other timings the run has lie within the rest, and may overlap.
    """
    rows = []
    for index in range(1, len(turns.ends)):
        before, now = turns.ends[index - 1][0], turns.ends[index][0]
        timings = turns.timings[index]
        if timings is None or before < begin or now > end:
            continue
        own = {name: timings[name] for name in WORKERS_PARTS if name in timings}
        rest = {"rest": now - before - sum(own.values())}
        rows.append({"turn": now - before} | own | rest | dict(timings))
    return rows


def _medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """In ms, each part over the turns that have it; the order is that of the parts' first appearance."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        name: 1000.0 * statistics.median(row[name] for row in rows if name in row) for name in names
    }


def mean_of(several: Sequence[Measured]) -> Measured:
    """The same plain processes measured several times in a round, as one."""
    return Measured(
        statistics.fmean(one.images_per_s for one in several),
        {part: statistics.fmean(one.parts[part] for one in several) for part in several[0].parts},
        core=min(one.core for one in several),
    )


def paired_ratio(
    rounds: Sequence[Mapping[str, Measured]], name: str, baseline: str
) -> Ratio | None:
    """`name` over `baseline`, taken within each round that has both, with the nearest in time."""
    ratios = [
        one[name].images_per_s / one[name].beside.get(baseline, one[baseline].images_per_s)
        for one in rounds
        if name in one and baseline in one
    ]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios)) if ratios else None


def median_rate(rounds: Sequence[Mapping[str, Measured]], name: str) -> float | None:
    rates = [one[name].images_per_s for one in rounds if name in one]
    return statistics.median(rates) if rates else None


def parts_of(rounds: Iterable[Mapping[str, Measured]]) -> list[str]:
    """The parts of a turn, and whatever else was measured of it."""
    seen = (name for round_ in rounds for one in round_.values() for name in one.parts)
    return list(dict.fromkeys([*PARTS, *seen]))


def median_part(rounds: Sequence[Mapping[str, Measured]], name: str, part: str) -> float | None:
    values = [one[name].parts[part] for one in rounds if name in one and part in one[name].parts]
    return statistics.median(values) if values else None


def least_core(rounds: Sequence[Mapping[str, Measured]], name: str) -> float:
    """The share of a core that these plain processes got in their worst round."""
    return min((one[name].core for one in rounds if name in one), default=math.nan)


def median_discarded(rounds: Sequence[Mapping[str, Measured]], name: str) -> float:
    return statistics.median([one[name].discarded for one in rounds if name in one] or [0.0])
