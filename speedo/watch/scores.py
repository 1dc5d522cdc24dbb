"""Test outputs as a line for readers has room for them; logs and files have all."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from statistics import fmean
from typing import Final

MOST: Final = 10  # values of one output


def short_scores(metrics: Mapping[str, float]) -> dict[str, float]:
    """Of an output with more than `MOST` values their mean, as `name (mean of 160)`; the others as they are."""
    shown: dict[str, float] = {}
    for name, group in groupby(metrics, _output):
        keys = list(group)
        if len(keys) > MOST:
            shown[f"{name} (mean of {len(keys):,})"] = fmean(metrics[key] for key in keys)
        else:
            shown |= {key: metrics[key] for key in keys}
    return shown


def _output(name: str) -> str:
    """Of a value `name/3` its output; of an output with one value its name."""
    output, _, place = name.rpartition("/")
    return output if output and place.isdecimal() else name
