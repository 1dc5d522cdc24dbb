"""Compares the modes by a script of the user's: with one worker, then in every mode, run after run."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any, Final

from speedo.comparison.compare import Watch, alone
from speedo.comparison.one_run import Place, beginning, make, remove_former
from speedo.comparison.outcome import histories, keep_outcome
from speedo.comparison.wish import MOST_RUNS, Planned, keep_wish, planned, variants
from speedo.config.run_config import make_config
from speedo.errors import ConfigError
from speedo.report.figures import Figures, Series, figures_of
from speedo.report.page import Heading
from speedo.report.run_history import RunHistory
from speedo.report.tables import aligned, as_data
from speedo.run_dir.directory import METRICS
from speedo.run_dir.read_back import json_lines
from speedo.version import VERSION

ALONE: Final = "sync"  # the mode of the run with one worker, which is plain SGD in it


@dataclass(frozen=True, slots=True)
class ScriptWish:
    """What a comparison of scripts shall have; `script` is its path and its arguments."""

    script: Sequence[str]
    modes: Sequence[str]
    workers: Sequence[int]
    seeds: int = 1
    sweeps: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As plain data, to be written down and compared."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found


@dataclass(slots=True)
class ScriptComparison:
    """A comparison that is ready to be made. `problems` are the runs that failed, with what they said."""

    wish: ScriptWish
    folder: Path
    runs: list[Planned]
    problems: list[str] = field(default_factory=list)

    def make(self, watch: Watch) -> Figures | None:
        """Make what is missing. The figures of all runs; None where none has merged anything.

        Raises as `Comparison.make`. A run that was interrupted begins anew: a script has no checkpoints.
        """
        keep_wish(self.folder, self.wish)
        with alone(self.folder):
            figures = None
            for number, run in enumerate(self.runs, 1):
                if self._one(f"[{number}/{len(self.runs)}] {run.name}", run, watch):
                    figures = self._outcome()
            return figures or self._outcome()

    def _one(self, title: str, run: Planned, watch: Watch) -> bool:
        """Make one run, if it is not finished; whether there was anything to do."""
        place = Place(self.folder, run.name)
        if place.state(run.max_iter) == "finished":
            return False
        watch.note(f"{title}: begun")
        began = monotonic()

        def command(place: Place, run: Planned) -> list[str]:
            remove_former(place)
            words = [*beginning(), "speedo", "run", "--run-dir", str(place.run_dir)]
            return [*words, *_words(run.options), *self.wish.script]

        problem = make(
            place, run, lambda iteration: watch.show(f"{title}: iteration {iteration}"), command
        )
        if problem:
            self.problems.append(f"run {run.name} failed ({problem}); see {place.log}")
        watch.note(
            f"{title}: {f'failed, {problem}' if problem else f'done in {monotonic() - began:.0f} s'}"
        )
        return True

    def _outcome(self) -> Figures | None:
        """Work out the figures of the runs so far, and write them. Raises `DataError`."""
        found = histories(self.folder, self.runs)
        if not found:
            return None
        figures = figures_of(found, records=_records(found))
        for one in figures.series:
            one.published = ""  # that is of Caffe's net
        done = sum(
            Place(self.folder, run.name).state(run.max_iter) == "finished" for run in self.runs
        )
        script, *arguments = self.wish.script
        machine = f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, {platform.system()}"
        data = {
            "version": VERSION,
            "wish": self.wish.plain(),
            "machine": machine,
            "runs_planned": len(self.runs),
            "runs_done": done,
            **as_data(figures),
        }
        seeds = "1 seed" if self.wish.seeds == 1 else f"{self.wish.seeds} seeds"
        heading = Heading(
            f"SGD modes compared: {Path(script).name}",
            f"{done} of {len(self.runs)} runs, {seeds}, {machine}",
            [("script", script), ("arguments", " ".join(arguments) or "none")],
        )
        keep_outcome(self.folder, data, figures, heading)
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
    if len(runs) > MOST_RUNS:
        problems.append(
            f"{len(runs):,} runs are too many for one comparison; use at most {MOST_RUNS:,}"
        )
    if problems:
        raise ConfigError(problems)
    return ScriptComparison(wish, folder, runs)


def _runs_of(wish: ScriptWish) -> list[Planned]:
    runs: list[Planned] = []
    for seed in range(1, wish.seeds + 1):
        runs.append(planned(ALONE, 1, seed, {}, {}, 0))
        for workers, mode in product(wish.workers, wish.modes):
            for variant in variants(wish.sweeps, mode):
                runs.append(planned(mode, workers, seed, variant, variant, 0))
    return list({run.name: run for run in runs}.values())  # that with one worker once


def _words(options: Mapping[str, Any]) -> list[str]:
    """These options for a command line."""
    words = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not False:
            words.append(f"{flag}={value}")
    return words


def _records(runs: Sequence[RunHistory]) -> int | None:
    """Of an epoch, by the ranges that the results of the first run name; None where they name none."""
    try:
        stops = [
            int(stop)
            for _, _, line in json_lines(runs[0].folder / METRICS)
            if line is not None
            for _, _, stop in line.get("records", ())
        ]
    except (OSError, ValueError, TypeError):  # it was edited
        return None
    return max(stops, default=None)


def as_text(figures: Figures) -> str:
    """The table for a terminal; what is not known is a hyphen."""
    heading = (
        "run", "seconds", "records/s", "x throughput", "loss at end", f"{figures.unit} to loss", "speed-up", "accuracy",
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
    return aligned(lines)


def _rate(one: Series) -> float | None:
    known = [rate for run in one.runs if (rate := run.images_per_s()) is not None]
    return fmean(known) if known else None
