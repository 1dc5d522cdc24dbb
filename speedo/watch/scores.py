"""Test outputs as a line for readers has room for them; logs and files have all."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from math import isnan, nan
from statistics import fmean
from typing import Final

MOST: Final = 10  # values of one output


def short_scores(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Of an output with more than `MOST` values their mean, as `name (mean of 160)`; the others as they are.

    None, which JSON has for a value that is not available, becomes NaN.
    """
    known = {name: nan if value is None else value for name, value in metrics.items()}
    shown: dict[str, float] = {}
    for name, group in groupby(known, _output):
        keys = list(group)
        if len(keys) > MOST:
            shown[f"{name} (mean of {len(keys):,})"] = fmean(known[key] for key in keys)
        else:
            shown |= {key: known[key] for key in keys}
    return shown


def why_unavailable(metrics: Mapping[str, float]) -> str:
    """Which outputs a test has no number for, after its name (`speedo.engines.evaluation`); empty if it has all."""
    names = ", ".join(name for name, value in short_scores(metrics).items() if isnan(value))
    return names and (
        f"has no number for {names}: BatchNorm has no statistics yet, and without them the net overflows, as in Caffe"
    )


def _output(name: str) -> str:
    """Of a value `name/3` its output; of an output with one value its name."""
    output, _, place = name.rpartition("/")
    return output if output and place.isdecimal() else name
