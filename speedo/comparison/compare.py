"""Makes the runs of a comparison one after another, and the report after each."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from speedo.comparison.one_run import Place, make
from speedo.comparison.outcome import write_outcome
from speedo.comparison.sequential import engine_of, spec_of
from speedo.comparison.throughput import ROUGH_S, Forecasts, calibration_of, measured
from speedo.comparison.wish import Planned, Wish, keep_wish, runs_of
from speedo.data import default_data_root
from speedo.errors import ConfigError, SolverError
from speedo.report.figures import SEQUENTIAL, Figures
from speedo.run.datasets import make_dataset, preparable_dataset
from speedo.run.prepare import chosen_solver
from speedo.solver import SolverSpec, check_solver
from speedo.solver.data_layers import count_records

LOCK: Final = "lock"


class Watch(Protocol):
    """Sees a comparison go on."""

    def note(self, text: str) -> None: ...

    def show(self, text: str) -> None:
        """The state of the run that goes on."""


@dataclass(slots=True)
class Comparison:
    """A comparison that is ready to be made. `problems` are the runs that failed, with what they said."""

    wish: Wish
    folder: Path
    spec: SolverSpec
    records: int
    runs: list[Planned]
    problems: list[str] = field(default_factory=list)

    @property
    def net(self) -> str:
        return self.spec.net_name or self.spec.path.stem

    def estimates(self, note: Callable[[str], None]) -> list[float | None]:
        """Seconds that each run would take here, after a short measurement. Raises what that does."""
        calibration = measured(self.wish, ROUGH_S, note)
        return Forecasts(calibration, cores()).seconds(self.runs)

    def make(self, watch: Watch) -> Figures | None:
        """Make what is missing. The figures of all runs; None where none has merged anything.

        Raises `ConfigError` for a folder that is not this comparison's, and `KeyboardInterrupt` once the run that was
        under way has ended.
        """
        keep_wish(self.folder, self.wish)
        with alone(self.folder):
            calibration = None
            if any(run.workers > cores() for run in self.runs):
                watch.note(
                    "measuring this machine, to predict the throughput of more workers than it has cores"
                )
                calibration = calibration_of(self.folder, self.wish, watch.note)
            forecasts = Forecasts(calibration, cores())
            rates = _Rates(forecasts.seconds(self.runs), self.runs)
            figures = None
            for place, run in enumerate(self.runs):
                if self._one(place, run, rates, watch):
                    figures = self._outcome(forecasts)
            return figures or self._outcome(forecasts)

    def _outcome(self, forecasts: Forecasts) -> Figures | None:
        return write_outcome(self.folder, self.wish, self.runs, self.records, self.net, forecasts)

    def _one(self, number: int, run: Planned, rates: _Rates, watch: Watch) -> bool:
        """Make one run, if it is not finished; whether there was anything to do."""
        place, count = Place(self.folder, run.name), len(self.runs)
        if place.state(run.max_iter) == "finished":
            return False
        title = f"[{number + 1}/{count}] {run.name}"
        goes_on = place.has_checkpoint(run)
        began, first = time.monotonic(), place.iteration() if goes_on else 0
        watch.note(f"{title}: {'going on with it' if goes_on else 'begun'}")

        def look(iteration: int) -> None:
            spent = time.monotonic() - began
            left = rates.left(number, spent, (iteration - first) / max(run.max_iter - first, 1))
            epochs = iteration * self.spec.batch / self.records
            of = run.max_iter * self.spec.batch / self.records
            watch.show(f"{title}: {epochs:.2f} of {of:.2f} epochs{in_words(left)}")

        problem = make(place, run, look)
        rates.took(number, time.monotonic() - began)
        if problem:
            self.problems.append(f"run {run.name} failed ({problem}); see {place.log}")
            watch.note(f"{title}: failed, {problem}")
        else:
            left = rates.left(number, 0.0, 1.0)
            early = place.ended_early()
            ended = f"ended early, {early}," if early else "done"
            watch.note(f"{title}: {ended} in {time.monotonic() - began:.0f} s{in_words(left)}")
        return True


class _Rates:
    """How long runs take: as predicted, and by what those before took for their images."""

    def __init__(self, predicted: Sequence[float | None], runs: Sequence[Planned]) -> None:
        self._predicted, self._runs = list(predicted), runs
        self._took: dict[int, float] = {}

    def took(self, number: int, seconds: float) -> None:
        self._took[number] = seconds

    def left(self, number: int, spent: float, part: float) -> float | None:
        """Seconds of the rest of this run, of which `part` is done, and of those behind it."""
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


def in_words(seconds: float | None) -> str:
    """`, 12 min left`; nothing where that is not known."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f", {seconds:.0f} s left"
    return f", {seconds / 60:.0f} min left" if seconds < 5400 else f", {seconds / 3600:.1f} h left"


def prepared(wish: Wish, folder: Path, note: Callable[[str], None]) -> Comparison:
    """Read and check everything before the first run. Raises `ConfigError`, `SolverError`, `DataError`."""
    options = {**wish.options, "solver": wish.solver}
    spec = spec_of(options, engine_of(options, note))
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
    return Comparison(wish, folder, spec, records, runs_of(wish, spec, records))


def solver_named(given: Path | None) -> Path:
    """The solver's absolute path. Raises `ConfigError`."""
    return chosen_solver(given).absolute()


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
