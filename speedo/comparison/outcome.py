"""What a comparison leaves: `compare.json` with all figures, and the report."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from speedo.comparison.one_run import Place
from speedo.comparison.throughput import Forecasts
from speedo.comparison.wish import Planned, Wish
from speedo.errors import DataError
from speedo.json_lines import plain
from speedo.report.figures import Figures, figures_of
from speedo.report.files import write_report
from speedo.report.page import Heading
from speedo.report.run_history import RunHistory, read_history
from speedo.report.tables import as_data
from speedo.run_dir.directory import METRICS, write_whole
from speedo.version import VERSION

FIGURES: Final = "compare.json"
PAGE: Final = "report.html"


def histories(folder: Path, runs: Sequence[Planned]) -> list[RunHistory]:
    """The runs that have begun."""
    found = []
    for run in runs:
        place = Place(folder, run.name)
        if (place.run_dir / METRICS).is_file():
            found.append(read_history(place.run_dir))
    return [run for run in found if run.ends]


def write_outcome(
    folder: Path, wish: Wish, runs: Sequence[Planned], records: int, net: str, forecasts: Forecasts
) -> Figures | None:
    """Work out the figures of the runs so far, and write them; None before the first has merged anything.

    Raises `DataError`.
    """
    found = histories(folder, runs)
    if not found:
        return None
    figures = figures_of(found, records=records, measure=wish.measure, forecasts=forecasts.of)
    done = sum(Place(folder, run.name).state(run.max_iter) == "finished" for run in runs)
    machine = f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, {platform.system()}"
    data: dict[str, Any] = {
        "version": VERSION,
        "wish": wish.plain(),
        "net": net,
        "machine": machine,
        "runs_planned": len(runs),
        "runs_done": done,
        **as_data(figures),
    }
    seeds = "1 seed" if wish.seeds == 1 else f"{wish.seeds} seeds"
    heading = Heading(
        f"SGD modes compared: {net}",
        f"{done} of {len(runs)} runs, {wish.epochs:g} epochs of sequential Caffe, {seeds}, {machine}",
        [
            ("solver", str(wish.solver)),
            ("runs", _trained(wish)),
            *([("options", ", ".join(f"{k} {v}" for k, v in wish.options.items()))] if wish.options else []),
        ],
    )  # fmt: skip
    keep_outcome(folder, data, figures, heading)
    return figures


def keep_outcome(folder: Path, data: Mapping[str, Any], figures: Figures, heading: Heading) -> None:
    """Write both files of a comparison. Raises `DataError`."""
    try:
        write_whole(folder / FIGURES, json.dumps(plain(data), indent=2) + "\n")
    except OSError as error:
        raise DataError(
            f"{folder / FIGURES} cannot be written: {error.strerror}; make room there"
        ) from None
    write_report(figures, heading, folder / PAGE)


def _trained(wish: Wish) -> str:
    modes = ", ".join(wish.modes)
    counts = ", ".join(map(str, wish.workers))
    text = (
        f"{modes} with {counts} workers, for {wish.longer:g} times the epochs of sequential Caffe"
    )
    if wish.sweeps:
        swept = "; ".join(
            f"{name} {', '.join(map(str, values))}" for name, values in wish.sweeps.items()
        )
        text += f"; {swept}"
    return (
        text
        + ". Seeds are 1 and up; each run has the initial weights of the sequential one with its seed."
    )
