"""Compares the modes by a script of the user's: with one worker, then in every mode, run after run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from speedo.errors import ConfigError
from speedo.run.config.option_table import words_of
from speedo.run.config.run_config import make_config
from speedo.run_dir.events import ResultMerged, read_events
from speedo.study.comparison.compare import Comparison
from speedo.study.comparison.one_run import RunFiles, ends_with_us, remove_former
from speedo.study.comparison.outcome import histories, write_outcome
from speedo.study.comparison.throughput import Forecasts
from speedo.study.comparison.wish import Planned, ScriptWish, check_runs, planned, variants
from speedo.system.foreign_text import aligned
from speedo.watch.report.figures import Figures, Series, figures_of
from speedo.watch.report.run_history import RunHistory

ALONE: Final = "sync"  # the mode of the run with one worker, which is plain SGD in it


@dataclass(slots=True)
class ScriptComparison(Comparison):
    """The modes by a script. A run that was interrupted starts again: a script has no checkpoints here."""

    wish: ScriptWish

    def command(self, place: RunFiles, run: Planned) -> list[str]:
        remove_former(place)
        words = ends_with_us("speedo", "run", "--run-dir", str(place.run_dir))
        return [*words, *words_of(run.options), *self.wish.script]

    def outcome(self, forecasts: Forecasts) -> Figures | None:
        found = histories(self.folder, self.runs)
        if not found:
            return None
        figures = figures_of(found, records=_records(found))
        for one in figures.series:
            one.published = ""  # that is of Caffe's net
        script, *arguments = self.wish.script
        facts = [("script", script), ("arguments", " ".join(arguments) or "none")]
        name = Path(script).name
        write_outcome(self.folder, self.wish, self.runs, figures, name, "", facts)
        return figures


def prepared(wish: ScriptWish, folder: Path, fixed: Mapping[str, Any]) -> ScriptComparison:
    """Check everything before the first run. `fixed`: what all runs of scripts have. Raises `ConfigError`."""
    problems = []
    if not Path(wish.script[0]).is_file():
        problems.append(
            f"the script {wish.script[0]} is not a file; give the path of a Python script"
        )
    runs = _runs_of(wish)
    for run in runs:
        try:
            make_config({**fixed, **run.options, "script": tuple(wish.script)})
        except ConfigError as error:
            problems += [f"run {run.name}: {one}" for one in error.problems if run.seed == 1]
    check_runs(runs, problems)
    return ScriptComparison(wish, folder, runs)


def _runs_of(wish: ScriptWish) -> list[Planned]:
    found: dict[str, Planned] = {}  # that with one worker is there once
    for seed in range(1, wish.seeds + 1):
        each: list[tuple[str, int, Mapping[str, Any]]] = [(ALONE, 1, {})]
        each += [
            (mode, workers, variant)
            for workers, mode in product(wish.workers, wish.modes)
            for variant in variants(wish.sweeps, mode)
        ]
        for mode, workers, variant in each:
            run = planned(mode, workers, seed, variant, variant, 0)
            found.setdefault(run.name, run)
    return list(found.values())


def _records(runs: Sequence[RunHistory]) -> int | None:
    """Of an epoch, by the ranges that the results of the first run name; None where they name none."""
    stops = [
        stop
        for event in read_events(runs[0].folder)
        if isinstance(event, ResultMerged)
        for _, _, stop in event.records
    ]
    return max(stops, default=None)


def as_text(figures: Figures) -> str:
    """The table for a terminal; what is not known is a hyphen."""
    heading = (
        "run", "seconds", "records/s", "x throughput", "loss at end", f"{figures.unit} to loss", "speed-up",
        figures.score,
    )  # fmt: skip
    first = _rate(figures.reference)
    lines = [heading]
    for one in figures.series:
        rate = _rate(one)
        losses = [float(curve.loss[-1]) for curve in one.curves if len(curve.loss)]
        accuracies = [found[-1][2] for run in one.runs if (found := run.accuracies())]
        lines.append(
            (
                one.label,
                f"{fmean(run.seconds[-1] - run.began for run in one.runs):,.1f}",
                "-" if rate is None else f"{rate:,.0f}",
                "-" if rate is None or not first else f"{rate / first:.2f}",
                f"{fmean(losses):.4g}" if losses else "-",
                "-" if one.epochs is None else f"{one.epochs.mean:.2f}",
                "-" if one.speedup is None else f"{one.speedup.mean:.2f}",
                f"{fmean(accuracies):.4f}" if accuracies else "-",
            )
        )
    return "\n".join(aligned(lines))


def _rate(one: Series) -> float | None:
    known = [rate for run in one.runs if (rate := run.images_per_s()) is not None]
    return fmean(known) if known else None
