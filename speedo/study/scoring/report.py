"""The scores of models as text and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from speedo.study.scoring.score import Score
from speedo.system.foreign_text import aligned
from speedo.watch.scores import short_scores


def as_fields(score: Score, workers: int) -> dict[str, Any]:
    """A score as plain data."""
    return {
        "model": str(score.model.path.absolute()),
        "iteration": score.model.iteration,
        "metrics": dict(score.metrics),
        "batches": list(score.batches),
        "samples": score.samples,
        "workers": workers,
        "seconds": score.seconds,
        "images_per_s": score.samples / score.seconds if score.seconds > 0 else 0.0,
    }


def as_lines(score: Score, workers: int) -> list[str]:
    """A score alone: what was done, then an output a line."""
    batches = " + ".join(f"{count:,}" for count in score.batches)
    scores = short_scores(score.metrics)
    width = max(map(len, scores), default=0)
    by = "1 worker" if workers == 1 else f"{workers} workers"
    return [
        f"{score.model.path}: {batches} batches, {score.samples:,} records, {by}, {score.seconds:.1f} s",
        *(f"{name:<{width}}  {value:.6g}" for name, value in scores.items()),
    ]


def as_table(scores: Sequence[Score]) -> list[str]:
    """A line for each model, a column for each output."""
    shown = [short_scores(score.metrics) for score in scores]
    names = list(dict.fromkeys(name for values in shown for name in values))
    rows = [["iteration", *names, "model"]]
    for score, there in zip(scores, shown, strict=True):
        at = "" if score.model.iteration is None else str(score.model.iteration)
        values = [f"{there[name]:.6g}" if name in there else "" for name in names]
        rows.append([at, *values, score.model.path.name])
    return aligned(rows, left=(len(names) + 1,))
