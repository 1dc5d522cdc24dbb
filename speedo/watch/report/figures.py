"""Groups runs that differ by their seed alone, and works out the figures of each group against a reference.

The reference is sequential Caffe where there is such a run, else the first run that was given.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from speedo.sgd_modes.conditions import name_of_score
from speedo.watch.report.equal_loss import (
    LossCurve,
    Measure,
    SeedRange,
    curve_of,
    interval_of,
    product,
    ratios,
    seconds_at,
    window_of,
)
from speedo.watch.report.run_history import RunHistory

SEQUENTIAL: Final = "sequential"  # the mode of a run of plain Caffe
REACHED: Final = 1.001  # a loss counts as reached within a thousandth: rounding must decide nothing
SAME_PLACE: Final = 0.02  # of a run: a test so near its end counts as one at its end
# Options that make no other series: names, places, and how far a run goes.
NO_VARIANT: Final = frozenset(
    ("mode", "workers", "seed", "run_dir", "resume", "take_over", "max_iter", "port", "redis", "solver", "data_root",
     "copy_to", "weights", "test_interval", "checkpoint_interval", "timeout", "join_timeout")
)  # fmt: skip
# Speed-up to equal loss on CIFAR-10 at 2, 3 and 4 workers, as published with the original SpeeDO in 2016. Of the
# asynchronous modes it gives the range alone.
PUBLISHED: Final[Mapping[str, Mapping[int, str]]] = {
    "easgd": {2: "2.02", 3: "2.49", 4: "2.73"},
    "sync": {2: "1.76", 3: "2.27", 4: "2.47"},
    **{mode: dict.fromkeys((2, 3, 4), "0.98 to 1.24") for mode in ("async", "partial", "weed-out")},
}


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted images/s, and how many times that is sequential Caffe's."""

    images_per_s: float
    factor: float


@dataclass(slots=True)
class Series:
    """Runs that differ by their seed alone, and their figures. A figure that is not known is None.

    `epochs` and `seconds` are those to the target loss; `not_reached` counts the runs that never got there, and
    `at_most` is what the epoch factor is then at most. `accuracy` is that of the tests at the end of the
    reference's epochs, and of the last tests where there is none. A run that never got there is in `at_most` with all
    its epochs.
    """

    mode: str
    workers: int
    variant: str
    runs: list[RunHistory]
    curves: list[LossCurve] = field(default_factory=list)
    forecast: Forecast | None = None
    epochs: SeedRange | None = None
    seconds: SeedRange | None = None
    images_per_s: SeedRange | None = None
    epoch_factor: SeedRange | None = None
    at_most: float | None = None
    not_reached: int = 0
    throughput_factor: SeedRange | None = None
    speedup: SeedRange | None = None
    accuracy: SeedRange | None = None
    published: str = ""

    @property
    def label(self) -> str:
        if self.mode == SEQUENTIAL:
            return "sequential Caffe"
        count = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"{self.mode}, {count}" + (f", {self.variant}" if self.variant else "")

    @property
    def short(self) -> str:
        """Its name where the number of workers is known."""
        if self.mode == SEQUENTIAL:
            return "sequential Caffe"
        return self.mode + (f", {self.variant}" if self.variant else "")

    @property
    def predicted(self) -> bool:
        """Whether its throughput is predicted, not measured."""
        return self.forecast is not None

    @property
    def staleness(self) -> Counter[int]:
        total: Counter[int] = Counter()
        for run in self.runs:
            total.update(run.staleness)
        return total

    @property
    def turn(self) -> dict[str, float]:
        """Seconds of a turn and of its parts, means over the runs."""
        known = [run.turns for run in self.runs if run.turns]
        names = dict.fromkeys(name for turns in known for name in turns)
        return {name: sum(turns.get(name, 0.0) for turns in known) / len(known) for name in names}

    @property
    def refused_share(self) -> float | None:
        """Results that were not merged, of all that reached the master."""
        merged = sum(run.merged for run in self.runs)
        refused = sum(run.not_merged for run in self.runs)
        return refused / (merged + refused) if merged + refused else None


@dataclass(slots=True)
class Figures:
    """All that a page shows. `records` is None where the images of an epoch are not known.

    `targets` has the loss to reach, for each seed of the reference and, under None, for the others; it is empty where
    one series is alone and no loss was given. `scale` is the
    images of one unit of the axis of epochs, and `unit` its name.
    """

    series: list[Series]
    reference: Series
    records: int | None
    measure: Measure
    window: float
    targets: dict[int | None, float]
    target_given: bool

    @property
    def scale(self) -> float:
        return float(self.records or 1000)

    @property
    def unit(self) -> str:
        return "epochs" if self.records else f"thousand {self.counted}"

    @property
    def counted(self) -> str:
        """What runs of scripts count, and what others do."""
        own = any(run.options.get("own") for one in self.series for run in one.runs)
        return "samples" if own else "images"

    @property
    def compares(self) -> bool:
        """Whether there is anything to compare the reference with."""
        return len(self.series) > 1

    @property
    def score(self) -> str:
        """What the tests of the runs measure: an accuracy or, of detectors alone, a mean average precision."""
        tested = [run.tests[-1].metrics for one in self.series for run in one.runs if run.tests]
        names = {name_of_score(metrics) for metrics in tested}
        return names.pop() if len(names) == 1 else "accuracy"


def grouped(runs: Sequence[RunHistory]) -> list[Series]:
    """Series in the order of their first runs; of two runs of one series with the same seed each is its own."""
    trained = [run for run in runs if run.mode != SEQUENTIAL]
    found: dict[tuple[str, int, str], Series] = {}
    for run in runs:
        variant = "" if run.mode == SEQUENTIAL else _variant(run, trained)
        key = (run.mode, run.wanted, variant)
        if key in found and run.seed in {other.seed for other in found[key].runs}:
            key = (run.mode, run.wanted, f"{variant}, {run.name}".removeprefix(", "))
        found.setdefault(key, Series(*key, [])).runs.append(run)
    return list(found.values())


def _variant(run: RunHistory, others: Sequence[RunHistory]) -> str:
    """What sets this run's options apart from those of the other runs of its mode."""
    alike = [other for other in others if other.mode == run.mode]
    names = sorted({name for other in alike for name in other.options} - NO_VARIANT)
    differing = [
        name for name in names if len({repr(other.options.get(name)) for other in alike}) > 1
    ]
    return ", ".join(f"{name} {_said(run.options.get(name))}" for name in differing)


def _said(value: Any) -> str:
    return "as usual" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def figures_of(
    runs: Sequence[RunHistory],
    *,
    records: int | None,
    target: float | None = None,
    measure: Measure = "train",
    forecasts: Callable[[RunHistory], Forecast | None] = lambda run: None,
) -> Figures:
    """The figures of these runs, of which one at least has merged something.

    `forecasts` answers the predicted throughput of a run's series, None where it is measured.
    """
    series = grouped(runs)
    reference = next((one for one in series if one.mode == SEQUENTIAL), series[0])
    shortest = min((run.images for run in reference.runs if run.images), default=1.0)
    window = window_of(shortest, records)
    for one in series:
        one.curves = [curve_of(run, measure, window) for run in one.runs]
        one.forecast = forecasts(one.runs[0])
        one.published = PUBLISHED.get(one.mode, {}).get(one.workers, "")
    alone = len(series) == 1 and target is None
    targets = {} if alone else _targets(reference, target)
    figures = Figures(series, reference, records, measure, window, targets, target is not None)
    for one in series:
        _work_out(one, figures)
    for one in series if targets and figures.compares else ():
        _compare(one, figures)
    return figures


def _targets(reference: Series, given: float | None) -> dict[int | None, float]:
    if given is not None:
        return {None: given}
    found: dict[int | None, float] = {}
    for run, curve in zip(reference.runs, reference.curves, strict=True):
        if len(curve.loss) and math.isfinite(curve.loss[-1]):
            found[run.seed] = REACHED * float(curve.loss[-1])
    return {**found, None: sum(found.values()) / len(found)} if found else {}


def target_for(figures: Figures, run: RunHistory) -> float:
    """The loss that this run has to reach."""
    return figures.targets.get(run.seed, figures.targets[None])


def _reached(one: Series, figures: Figures) -> dict[int | None, float]:
    """Images to the target, of each seed that got there."""
    found: dict[int | None, float] = {}
    for run, curve in zip(one.runs, one.curves, strict=True):
        images = curve.reaches(target_for(figures, run))
        if images is not None:
            found[run.seed] = images
    return found


def _rates(one: Series) -> dict[int | None, float]:
    rates = {run.seed: run.images_per_s() for run in one.runs}
    return {seed: rate for seed, rate in rates.items() if rate is not None}


def _work_out(one: Series, figures: Figures) -> None:
    """The figures of a series by itself."""
    if figures.targets:
        reached = _reached(one, figures)
        one.epochs = interval_of([images / figures.scale for images in reached.values()])
        one.not_reached = len(one.runs) - len(reached)
        seconds = [seconds_at(run, reached[run.seed]) for run in one.runs if run.seed in reached]
        if one.forecast is not None:
            seconds = [images / one.forecast.images_per_s for images in reached.values()]
        one.seconds = interval_of(seconds)
    one.images_per_s = interval_of(list(_rates(one).values()))
    end = max((run.images for run in figures.reference.runs), default=0.0)
    one.accuracy = interval_of(
        [value for run in one.runs if (value := _accuracy(run, end)) is not None]
    )


def _accuracy(run: RunHistory, images: float) -> float | None:
    """Of the test after this many images, or else of the last one."""
    found = [one for one in run.accuracies() if math.isfinite(one[2])]
    near = [one for one in found if abs(one[0] - images) <= SAME_PLACE * images]
    if near:
        return min(near, key=lambda one: abs(one[0] - images))[2]
    return found[-1][2] if found else None


def _compare(one: Series, figures: Figures) -> None:
    """The factors of a series against the reference."""
    own, theirs = _reached(one, figures), _reached(figures.reference, figures)
    if one.not_reached:
        so_far = {run.seed: own.get(run.seed, run.images) for run in one.runs if run.images}
        bound = ratios(theirs, so_far)
        one.at_most = None if bound is None else bound.mean
    else:
        one.epoch_factor = ratios(theirs, own)
    if one.forecast is not None:
        factor = one.forecast.factor
        one.throughput_factor = SeedRange(factor, factor, factor, len(one.runs))
    else:
        inverse = {seed: 1.0 / rate for seed, rate in _rates(figures.reference).items()}
        one.throughput_factor = ratios(inverse, {s: 1.0 / r for s, r in _rates(one).items()})
    one.speedup = product(one.epoch_factor, one.throughput_factor)
