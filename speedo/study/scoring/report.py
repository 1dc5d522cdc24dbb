"""The scores of models as text and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from speedo.study.scoring.int8 import Int8Scores
from speedo.study.scoring.score import Score
from speedo.system.foreign_text import aligned
from speedo.system.json_lines import plain
from speedo.watch.scores import short_scores

MOST_LAYERS: Final = 5  # that are shown


def as_fields(score: Score, workers: int) -> dict[str, Any]:
    """A score as plain data."""
    return {
        "model": str(score.model.path.absolute()),
        "iteration": score.model.iteration,
        "metrics": plain(score.metrics),
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


def int8_fields(score: Score, found: Int8Scores, workers: int) -> dict[str, Any]:
    """A score and its quantised ones as plain data."""
    return as_fields(score, workers) | {
        "int8": {
            **{kind: {"metrics": dict(one.metrics)} for kind, one in found.scores.items()},
            "layers": [
                {"name": name, "type": kind, "decibels": dict(noise)}
                for (name, kind), noise in found.layers.items()
            ],
            "in_float": [{"name": name, "type": kind} for name, kind in found.in_float],
            "calibration_records": found.records,
        }
    }


def int8_lines(score: Score, found: Int8Scores, workers: int) -> list[str]:
    """A score and its quantised ones: an output a line, then the layers that lose most, and those in float."""
    exact = short_scores(score.metrics)
    rounded = {kind: short_scores(one.metrics) for kind, one in found.scores.items()}
    rows = [
        ["", "float", *(word for kind in rounded for word in (f"int8 {_words(kind)}", "change"))]
    ]
    for name, value in exact.items():
        row = [name, f"{value:.6g}"]
        for scores in rounded.values():
            row += (
                [f"{scores[name]:.6g}", _change(scores[name], value)]
                if name in scores
                else ["", ""]
            )
        rows.append(row)
    ranked = sorted(found.layers.items(), key=lambda one: min(map(_decibels, one[1].values())))
    kinds = list(found.scores)
    layers = [["layer", "type", *map(_words, kinds)]]
    for (name, kind), noise in ranked[:MOST_LAYERS]:
        layers.append([name, kind, *(_shown(noise.get(one)) for one in kinds)])
    others = f" ({MOST_LAYERS} of {len(ranked):,} layers)" if len(ranked) > MOST_LAYERS else ""
    in_float = ", ".join(f"{name} ({kind})" for name, kind in found.in_float) or "none"
    return [
        as_lines(score, workers)[0],
        *aligned(rows),
        f"lost most, signal to noise of each layer quantised alone{others}:",
        *aligned(layers, left=(0, 1)),
        f"in float: {in_float}",
        f"ranges: from {found.records:,} training records",
    ]


def _change(rounded: float, exact: float) -> str:
    """The difference; what float32 makes of the same sum is none."""
    change = rounded - exact
    return f"{change:+.3g}" if abs(change) > 1e-6 * abs(exact) else "0"


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _decibels(noise: float | None) -> float:
    return float("inf") if noise is None else noise


def _shown(noise: float | None) -> str:
    return "exact" if noise is None else f"{noise:.1f} dB"
