"""The figures as a table in CSV and as plain data for JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from speedo.report.equal_loss import Interval
from speedo.report.figures import Figures, Series
from speedo.report.run_history import RunHistory

COLUMNS: Final = (
    "series", "mode", "workers", "variant", "runs", "runs_that_did_not_reach_the_loss",
    "epochs_to_loss", "epochs_least", "epochs_most", "seconds_to_loss",
    "images_per_s", "images_per_s_predicted", "epoch_factor", "epoch_factor_least", "epoch_factor_most",
    "epoch_factor_at_most",
    "throughput_factor", "throughput_is", "speedup", "speedup_least", "speedup_most", "published",
    "accuracy", "accuracy_least", "accuracy_most", "merged", "not_merged",
)  # fmt: skip


def rows(figures: Figures) -> list[dict[str, Any]]:
    """A row for each series, with the columns of `COLUMNS`; None for what is not known."""
    return [_row(one) for one in figures.series]


def as_csv(figures: Figures) -> str:
    """The rows with a heading; a cell of what is not known is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows(figures):
        writer.writerow(
            {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()}
        )  # fmt: skip
    return text.getvalue()


def as_data(figures: Figures) -> dict[str, Any]:
    """Everything as plain data, for JSON."""
    targets = {"others" if s is None else str(s): loss for s, loss in figures.targets.items()}
    return {
        "records": figures.records,
        "unit": figures.unit,
        "measure": figures.measure,
        "window_images": figures.window,
        "reference": figures.reference.label,
        "target_loss_by_seed": targets,
        "target_given": figures.target_given,
        "series": [
            {**_row(one), "staleness": {str(k): n for k, n in sorted(one.staleness.items())},
             "turn_seconds": one.turn, "runs_in_detail": [_run(run) for run in one.runs]}
            for one in figures.series
        ],
    }  # fmt: skip


def _run(run: RunHistory) -> dict[str, Any]:
    return {
        "name": run.name,
        "seed": run.seed,
        "complete": run.complete,
        "reason": run.reason,
        "images": run.images,
        "images_per_s": run.images_per_s(),
        "merged": run.merged,
        "refused": [asdict(one) for one in run.refused],
        "tests": [asdict(one) for one in run.tests],
        "lives": [asdict(one) for one in run.lives],
    }


def _row(one: Series) -> dict[str, Any]:
    def part(name: str, which: str) -> float | None:
        interval = getattr(one, name)
        return None if interval is None else float(getattr(interval, which))

    return {
        "series": one.label,
        "mode": one.mode,
        "workers": one.workers,
        "variant": one.variant,
        "runs": len(one.runs),
        "runs_that_did_not_reach_the_loss": one.not_reached,
        "epochs_to_loss": part("epochs", "mean"),
        "epochs_least": part("epochs", "least"),
        "epochs_most": part("epochs", "most"),
        "seconds_to_loss": part("seconds", "mean"),
        "images_per_s": part("images_per_s", "mean"),
        "images_per_s_predicted": one.forecast.images_per_s if one.forecast else None,
        "epoch_factor": part("epoch_factor", "mean"),
        "epoch_factor_least": part("epoch_factor", "least"),
        "epoch_factor_most": part("epoch_factor", "most"),
        "epoch_factor_at_most": one.at_most,
        "throughput_factor": part("throughput_factor", "mean"),
        "throughput_is": "predicted" if one.predicted else "measured",
        "speedup": part("speedup", "mean"),
        "speedup_least": part("speedup", "least"),
        "speedup_most": part("speedup", "most"),
        "published": one.published,
        "accuracy": part("accuracy", "mean"),
        "accuracy_least": part("accuracy", "least"),
        "accuracy_most": part("accuracy", "most"),
        "merged": sum(run.merged for run in one.runs),
        "not_merged": sum(run.not_merged for run in one.runs),
    }


def as_text(figures: Figures) -> str:
    """The table for a terminal; a predicted figure has a `p` behind it, one that is not known is a hyphen."""
    heading = (
        "run", f"{figures.unit} to loss", "epoch factor", "images/s", "x throughput", "speed-up", "published",
        "accuracy",
    )  # fmt: skip
    lines = [heading]
    for one in figures.series:
        mark = "p" if one.predicted else ""
        rate = (
            one.forecast.images_per_s
            if one.forecast
            else one.images_per_s and one.images_per_s.mean
        )
        bound = "-" if one.at_most is None else f"<= {one.at_most:.2f}"
        lines.append(
            (
                one.label,
                _said(one.epochs),
                bound if one.epoch_factor is None else _said(one.epoch_factor),
                "-" if rate is None else f"{rate:,.0f}{mark}",
                _said(one.throughput_factor, mark=mark),
                _said(one.speedup, mark=mark),
                one.published or "-",
                _said(one.accuracy, ".4f"),
            )
        )
    text = aligned(lines)
    if any(one.predicted for one in figures.series):
        text += "\np: predicted for a machine with a core for each worker"
    return text


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as a table: the first column is text, the others are numbers."""
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) if place == 0 else cell.rjust(width)
                  for place, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )  # fmt: skip


def _said(interval: Interval | None, form: str = ".2f", mark: str = "") -> str:
    return "-" if interval is None else f"{interval.mean:{form}}{mark}"
