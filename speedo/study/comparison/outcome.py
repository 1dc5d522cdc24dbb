"""What a comparison leaves: `compare.json` with all figures, and the report."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from speedo.errors import DataError
from speedo.run_dir.directory import METRICS, write_whole
from speedo.study.comparison.one_run import RunFiles
from speedo.study.comparison.wish import ComparisonWish, Planned, ScriptWish, plain_of
from speedo.system.json_lines import plain
from speedo.version import VERSION
from speedo.watch.report.figures import Figures
from speedo.watch.report.files import write_report
from speedo.watch.report.page import Heading
from speedo.watch.report.run_history import RunHistory, read_history
from speedo.watch.report.tables import as_data

FIGURES: Final = "compare.json"
PAGE: Final = "report.html"


def histories(folder: Path, runs: Sequence[Planned]) -> list[RunHistory]:
    """The runs that have begun."""
    found = []
    for run in runs:
        place = RunFiles(folder, run.name)
        if (place.run_dir / METRICS).is_file():
            found.append(read_history(place.run_dir))
    return [run for run in found if run.ends]


def write_outcome(
    folder: Path,
    wish: ComparisonWish | ScriptWish,
    runs: Sequence[Planned],
    figures: Figures,
    name: str,
    about: str,
    facts: Sequence[tuple[str, str]],
) -> None:
    """Write the figures of the runs so far; `name` is that of the net or script, `about` a part of the subtitle.

    Raises `DataError`.
    """
    done = sum(RunFiles(folder, run.name).state(run.max_iter) == "finished" for run in runs)
    machine = f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, {platform.system()}"
    data = {
        "version": VERSION,
        "wish": plain_of(wish),
        "net": name,
        "machine": machine,
        "runs_planned": len(runs),
        "runs_done": done,
        **as_data(figures),
    }
    try:
        write_whole(folder / FIGURES, json.dumps(plain(data), indent=2) + "\n")
    except OSError as error:
        raise DataError(
            f"{folder / FIGURES} cannot be written: {error.strerror}; make room there"
        ) from None
    seeds = "1 seed" if wish.seeds == 1 else f"{wish.seeds} seeds"
    subtitle = f"{done} of {len(runs)} runs, {about}{seeds}, {machine}"
    heading = Heading(f"SGD modes compared: {name}", subtitle, facts)
    write_report(figures, heading, folder / PAGE)
