"""Throughput where workers outnumber the cores of this machine: predicted by the simulator, as `speedo plan` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from speedo.errors import SpeedoError
from speedo.study.comparison.sequential import engine_of
from speedo.study.comparison.wish import ComparisonWish, Planned, mode_and_rule
from speedo.study.planning.calibrate_by_measuring import measure_solver
from speedo.study.planning.calibration import Calibration, read_calibration, write_calibration
from speedo.study.planning.predict import Prediction, predict, shares_of
from speedo.study.planning.site import Site
from speedo.system.bounds import whole_number
from speedo.watch.report.figures import SEQUENTIAL, Forecast
from speedo.watch.report.run_history import RunHistory

CALIBRATION: Final = "calibration.json"
SECONDS: Final = 3.0  # to measure steps, for each batch size
ROUGH_S: Final = 0.3  # the same for an estimate of how long runs take
START_S: Final = 10.0  # of a run: processes, nets, the last test

Note = Callable[[str], None]


def calibration_of(folder: Path, wish: ComparisonWish, note: Note) -> Calibration:
    """That of the folder, or one that is measured now and kept there. Raises what `measure_solver` does."""
    path = folder / CALIBRATION
    if path.is_file():
        return read_calibration(path)
    found = measured(wish, SECONDS, note)
    write_calibration(found, path)
    return found


def measured(wish: ComparisonWish, seconds: float, note: Note) -> Calibration:
    """Measure the wish's solver on this machine. Raises what `measure_solver` does."""
    options = wish.options
    root = options.get("data_root")
    found = measure_solver(
        Path(str(wish.solver)),
        [mode_and_rule(mode)["mode"] for mode in wish.modes],
        wish.workers,
        options.get("split_batch"),
        seconds,
        note,
        data_root=Path(root) if root else None,
        choice=engine_of(options, lambda _: None),
        ignore_unknown=bool(options.get("ignore_unknown")),
    )
    batch = options.get("batch")
    if batch is not None and batch != found.batch_size:
        found = _scaled(found, int(batch))
    return found


def _scaled(found: Calibration, batch: int) -> Calibration:
    """Of another batch, whose steps take time in proportion: the solver was measured with its own."""
    ratio = batch / found.batch_size
    steps = tuple(
        one.model_copy(
            update={"samples": max(1, round(one.samples * ratio)), "seconds": one.seconds * ratio}
        )
        for one in found.steps
    )
    return found.model_copy(update={"batch_size": batch, "steps": steps})


class Forecasts:
    """Predictions for runs with more workers than this machine has cores; each made once."""

    def __init__(self, calibration: Calibration | None, cores: int) -> None:
        self._calibration, self._cores = calibration, cores
        self._made: dict[tuple[Any, ...], Prediction | None] = {}

    def of(self, run: RunHistory) -> Forecast | None:
        """For a run that was too wide for this machine; None for the others, and where nothing can be predicted."""
        if run.mode == SEQUENTIAL or run.wanted <= self._cores:
            return None
        found = self.predicted(run.mode, run.wanted, run.options, run.wanted)
        return None if found is None else Forecast(found.images_per_s, found.speedup)

    def predicted(self, mode: str, workers: int, options: Any, cores: int) -> Prediction | None:
        """On one machine of this many cores. None for compressed exchanges, which were not measured."""
        known = self._calibration
        if known is None or options.get("compress", "none") != "none":
            return None
        split, steps = (
            options.get("split_batch"),
            whole_number(str(options.get("local_steps") or 1)),
        )
        if steps is None:  # turns that change their length
            return None
        key = (mode, workers, cores, split, steps, options.get("overlap"), options.get("team"))
        if key not in self._made:
            site = Site(
                cores, overlap=options.get("overlap") or "none", team=options.get("team") or "host"
            )
            try:
                possible = shares_of(known, mode, workers, split) is not None
                self._made[key] = (
                    predict(known, site, mode, workers, steps, split=split) if possible else None
                )
            except (SpeedoError, ValueError):
                self._made[key] = None
        return self._made[key]

    def seconds(self, runs: Sequence[Planned]) -> list[float | None]:
        """How long each run would take on this machine."""
        found: list[float | None] = []
        for run in runs:
            rate: float | None = None
            if run.mode == SEQUENTIAL:
                rate = self._calibration.images_per_s if self._calibration else None
            elif (
                made := self.predicted(run.mode, run.workers, run.options, self._cores)
            ) is not None:
                rate = made.images_per_s
            found.append(None if not rate else START_S + run.images / rate)
        return found
