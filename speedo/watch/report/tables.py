"""The figures as a table in CSV and as plain data for JSON."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from typing import Any

from speedo.system.foreign_text import aligned
from speedo.watch.report.equal_loss import SeedRange
from speedo.watch.report.figures import Figures, Series
from speedo.watch.report.run_history import RunHistory


def rows(figures: Figures) -> list[dict[str, Any]]:
    """A row for each series; None for what is not known."""
    return [_row(one) for one in figures.series]


def as_csv(figures: Figures) -> str:
    """The rows with a heading; a cell of what is not known is empty."""
    text, found = io.StringIO(), rows(figures)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(found[0])
    for row in found:
        writer.writerow(f"{one:.6g}" if isinstance(one, float) else one for one in row.values())
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
        "divisions": [asdict(one) for one in run.divisions],
    }


def _row(one: Series) -> dict[str, Any]:
    row: dict[str, Any] = {
        "series": one.label,
        "mode": one.mode,
        "workers": one.workers,
        "variant": one.variant,
        "runs": len(one.runs),
        "runs_that_did_not_reach_the_loss": one.not_reached,
    }

    def put(name: str, interval: SeedRange | None, *, whole: str = "") -> None:
        """The mean, and with `whole`, the beginning of their names, the least and the most."""
        row[name] = None if interval is None else float(interval.mean)
        if whole:
            row[f"{whole}_least"] = None if interval is None else float(interval.least)
            row[f"{whole}_most"] = None if interval is None else float(interval.most)

    put("epochs_to_loss", one.epochs, whole="epochs")
    put("seconds_to_loss", one.seconds)
    put("images_per_s", one.images_per_s)
    row["images_per_s_predicted"] = one.forecast.images_per_s if one.forecast else None
    put("epoch_factor", one.epoch_factor, whole="epoch_factor")
    row["epoch_factor_at_most"] = one.at_most
    put("throughput_factor", one.throughput_factor)
    row["throughput_is"] = "predicted" if one.predicted else "measured"
    put("speedup", one.speedup, whole="speedup")
    row["published"] = one.published
    put("accuracy", one.accuracy, whole="accuracy")
    row["merged"] = sum(run.merged for run in one.runs)
    row["not_merged"] = sum(run.not_merged for run in one.runs)
    return row


def as_text(figures: Figures) -> str:
    """The table for a terminal; a predicted figure has a `p` behind it, one that is not known is a hyphen."""
    heading = (
        "run", f"{figures.unit} to loss", "epoch factor", f"{figures.counted}/s", "x throughput", "speed-up",
        "published", figures.score,
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
    text = "\n".join(aligned(lines))
    if any(one.predicted for one in figures.series):
        text += "\np: predicted for a machine with a core for each worker"
    return text


def _said(interval: SeedRange | None, form: str = ".2f", mark: str = "") -> str:
    return "-" if interval is None else f"{interval.mean:{form}}{mark}"
