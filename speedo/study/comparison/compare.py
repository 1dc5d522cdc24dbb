"""Makes the runs of a comparison one after another, and the report after each."""

from __future__ import annotations

import fcntl
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from speedo.data.roots import default_data_root
from speedo.engines.solver import SolverSpec, check_solver
from speedo.engines.solver.data_layers import count_records
from speedo.errors import ConfigError, SolverError
from speedo.run.datasets import make_dataset, preparable_dataset
from speedo.study.comparison.one_run import RunFiles, command_of, make
from speedo.study.comparison.outcome import histories, write_outcome
from speedo.study.comparison.sequential import engine_of, spec_of
from speedo.study.comparison.throughput import ROUGH_S, Forecasts, calibration_of, measured
from speedo.study.comparison.wish import ComparisonWish, Planned, ScriptWish, keep_wish, runs_of
from speedo.watch.report.figures import SEQUENTIAL, Figures, figures_of
from speedo.watch.status_text import in_words

LOCK: Final = "lock"


class ComparisonProgress(Protocol):
    """Shows the progress of a comparison."""

    def note(self, text: str) -> None: ...

    def show(self, text: str) -> None:
        """The state of the current run."""


@dataclass(slots=True)
class Comparison(ABC):
    """A comparison that is ready to be made. `problems` are the runs that failed, with what they said."""

    wish: ComparisonWish | ScriptWish
    folder: Path
    runs: list[Planned]
    problems: list[str] = field(default_factory=list)

    @abstractmethod
    def command(self, place: RunFiles, run: Planned) -> list[str]:
        """The command that makes the run, or continues it. Raises `ConfigError`."""

    @abstractmethod
    def outcome(self, forecasts: Forecasts) -> Figures | None:
        """Work out the figures of the runs so far, and write them; None before the first has merged anything.

        Raises `DataError`.
        """

    def forecasts(self, note: Callable[[str], None]) -> Forecasts:
        """What is known of the runs' throughput before the first one."""
        return Forecasts(None, cores())

    def progress(self, run: Planned, iteration: int) -> str:
        """How far a run is."""
        return f"iteration {iteration}"

    def make(self, watch: ComparisonProgress) -> Figures | None:
        """Make what is missing. The figures of all runs; None where none has merged anything.

        Raises `ConfigError` for a folder that is not this comparison's, and `KeyboardInterrupt` once the run that was
        under way has ended.
        """
        keep_wish(self.folder, self.wish)
        with alone(self.folder):
            forecasts = self.forecasts(watch.note)
            rates = _Rates(forecasts.seconds(self.runs), self.runs)
            figures = None
            for number, run in enumerate(self.runs):
                if self._one(number, run, rates, watch):
                    figures = self.outcome(forecasts)
            return figures or self.outcome(forecasts)

    def _one(self, number: int, run: Planned, rates: _Rates, watch: ComparisonProgress) -> bool:
        """Make one run, if it is not finished; whether there was anything to do."""
        place = RunFiles(self.folder, run.name)
        if place.state(run.max_iter) == "finished":
            return False
        title = f"[{number + 1}/{len(self.runs)}] {run.name}"
        command = self.command(place, run)
        goes_on = place.run_dir.exists()
        began, first = time.monotonic(), place.iteration()
        watch.note(f"{title}: {'going on with it' if goes_on else 'begun'}")

        def look(iteration: int) -> None:
            part = (iteration - first) / max(run.max_iter - first, 1)
            left = rates.left(number, time.monotonic() - began, part)
            watch.show(f"{title}: {self.progress(run, iteration)}{_in_words(left)}")

        problem = make(place, run, command, look)
        seconds = time.monotonic() - began
        rates.took(number, seconds)
        if problem:
            self.problems.append(f"run {run.name} failed ({problem}); see {place.log}")
            watch.note(f"{title}: failed, {problem}")
        else:
            early = place.ended_early()
            ended = f"ended early, {early}," if early else "done"
            left = _in_words(rates.left(number, 0.0, 1.0))
            watch.note(f"{title}: {ended} in {seconds:.0f} s{left}")
        return True


@dataclass(slots=True)
class SolverComparison(Comparison):
    """Sequential Caffe and the modes, by a solver, which has `records` to train on."""

    wish: ComparisonWish
    spec: SolverSpec = field(kw_only=True)
    records: int = field(kw_only=True)

    def estimates(self, note: Callable[[str], None]) -> list[float | None]:
        """Seconds that each run would take here, after a short measurement. Raises what that does."""
        calibration = measured(self.wish, ROUGH_S, note)
        return Forecasts(calibration, cores()).seconds(self.runs)

    def command(self, place: RunFiles, run: Planned) -> list[str]:
        return command_of(place, run)

    def forecasts(self, note: Callable[[str], None]) -> Forecasts:
        calibration = None
        if any(run.workers > cores() for run in self.runs):
            note(
                "measuring this machine, to predict the throughput of more workers than it has cores"
            )
            calibration = calibration_of(self.folder, self.wish, note)
        return Forecasts(calibration, cores())

    def progress(self, run: Planned, iteration: int) -> str:
        done, whole = (n * self.spec.batch / self.records for n in (iteration, run.max_iter))
        return f"{done:.2f} of {whole:.2f} epochs"

    def outcome(self, forecasts: Forecasts) -> Figures | None:
        found, wish = histories(self.folder, self.runs), self.wish
        if not found:
            return None
        figures = figures_of(
            found, records=self.records, measure=wish.measure, forecasts=forecasts.of
        )
        net = self.spec.net_name or self.spec.path.stem
        facts = [("solver", str(wish.solver)), ("runs", _trained(wish))]
        if wish.options:
            facts.append(("options", ", ".join(f"{k} {v}" for k, v in wish.options.items())))
        about = f"{wish.epochs:g} epochs of sequential Caffe, "
        write_outcome(self.folder, wish, self.runs, figures, net, about, facts)
        return figures


def _trained(wish: ComparisonWish) -> str:
    counts = ", ".join(map(str, wish.workers))
    text = f"{', '.join(wish.modes)} with {counts} workers, for {wish.longer:g} times the epochs of sequential Caffe; "
    for name, values in wish.sweeps.items():
        text += f"{name} {', '.join(map(str, values))}; "
    return (
        text.removesuffix("; ")
        + ". Seeds are 1 and up; each run has the initial weights of the sequential one with its seed."
    )


class _Rates:
    """How long runs take: as predicted, and by what those before took for their images."""

    def __init__(self, predicted: Sequence[float | None], runs: Sequence[Planned]) -> None:
        self._predicted, self._runs = list(predicted), runs
        self._took: dict[int, float] = {}

    def took(self, number: int, seconds: float) -> None:
        self._took[number] = seconds

    def left(self, number: int, spent: float, part: float) -> float | None:
        """Seconds of the rest of this run, of which `part` is done, and of those behind it."""
        if not self._runs[number].images:  # a script's
            return None
        after = [self._expected(other) for other in range(number + 1, len(self._runs))]
        now = self._expected(number)
        if part >= 0.05:
            now = spent / part
        if now is None or None in after:
            return None
        return max(now - spent, 0.0) * (part < 1.0) + sum(one for one in after if one is not None)

    def _expected(self, number: int) -> float | None:
        run = self._runs[number]
        alike = [
            (self._took[other], self._runs[other].images)
            for other in self._took
            if (self._runs[other].mode == SEQUENTIAL) == (run.mode == SEQUENTIAL)
        ]
        if alike:
            return run.images * sum(took for took, _ in alike) / sum(images for _, images in alike)
        if self._predicted[number] is not None:
            return self._predicted[number]
        whole = sum(self._runs[other].images for other in self._took)
        return run.images * sum(self._took.values()) / whole if whole else None


def _in_words(left: float | None) -> str:
    """`, 12 min left`; nothing where that is not known."""
    return "" if left is None else f", {in_words(left)} left"


def prepared(wish: ComparisonWish, folder: Path, note: Callable[[str], None]) -> SolverComparison:
    """Read and check everything before the first run. Raises `ConfigError`, `SolverError`, `DataError`."""
    options = {**wish.options, "solver": wish.solver}
    spec = spec_of(options, engine_of(options, note))
    for line in spec.left_out:
        note(f"left out: {line}")
    dataset = preparable_dataset(spec)
    if dataset is not None:
        make_dataset((spec.data_root or default_data_root()).absolute(), dataset, note)
    check_solver(spec, workers=1, split=False)
    records = count_records(spec)
    if records is None:
        raise SolverError(
            f"{spec.path}: the training records of this net cannot be counted, so there are no epochs; use a database "
            "or a list of images"
        )
    if wish.measure == "test" and not spec.has_test:
        raise ConfigError(f"--loss test: {spec.path} has no test net; use --loss train")
    if wish.measure == "test" and wish.tests < 1:
        raise ConfigError("--loss test needs tests during training; use --tests 1 or more")
    runs = runs_of(wish, spec, records)
    return SolverComparison(wish, folder, runs, spec=spec, records=records)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """No second command makes the same comparison at the same time. Raises `ConfigError`."""
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another command makes the comparison in {folder} now; wait for it, or give another --out"
            ) from None
        yield
