"""Conditions on the outputs of a test, as in `accuracy>=0.9`; the output that tells which of two models is better."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isnan
from typing import Final

from speedo.system.bounds import said

_FORM: Final = re.compile(r"\s*([^\s<>=:]+)\s*(>=|<=|>|<)\s*(\S+)\s*")
_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_LOWER: Final = ("loss", "err")  # in the names of outputs of which a lower value is better
# Names that SSD's prototxts give to a detector's mean average precision.
_PRECISIONS: Final = ("detection_eval", "mAP")


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether a test output is on the right side of a value."""

    output: str
    relation: str
    value: float

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Whether these outputs fulfil it; a test without this output does not."""
        found = metrics.get(self.output)
        return found is not None and _COMPARE[self.relation](found, self.value)

    @property
    def is_about(self) -> Watched:
        """The output, with the side that is wanted."""
        return Watched(self.output, self.relation.startswith(">"))

    def __str__(self) -> str:
        return f"{self.output}{self.relation}{self.value:g}"


@dataclass(frozen=True, slots=True)
class Watched:
    """The output by which models are compared, and whether a higher value is better."""

    output: str
    higher: bool

    def is_better(self, value: float, best: float | None) -> bool:
        """Whether this value is better than the best so far; an equal one is not."""
        return best is None or (value > best if self.higher else value < best)


def parse_condition(text: str) -> Condition:
    """Parse `accuracy>=0.9`; raises `ValueError`."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(text)
    value = float(match[3])
    if value - value != 0.0:  # not finite
        raise ValueError(text)
    return Condition(match[1], match[2], value)


def check_condition(name: str, value: str) -> list[str]:
    """A condition on a test output."""
    try:
        parse_condition(value)
    except ValueError:
        form = "an output of the test net, one of >=, <=, >, < and a number, as in accuracy>=0.9"
        return [f"{name} is {said(value)}; use {form}"]
    return []


def check_best_by(name: str, value: str) -> list[str]:
    """The name of an output, after max: or min: if the name does not say which is better."""
    if re.fullmatch(r"(?:(?:max|min):)?[^\s<>=:]+", value):
        return []
    return [
        f"{name} is {said(value)}; use an output of the test net, as in accuracy, max:top5 or min:distance"
    ]


def parse_best_by(text: str) -> Watched:
    """Parse `accuracy` or `min:distance`. Without max or min a name with `loss` or `err` is better lower."""
    side, colon, output = text.rpartition(":")
    lower = side == "min" if colon else any(word in output.lower() for word in _LOWER)
    return Watched(output, not lower)


def score_among(outputs: Iterable[str]) -> str | None:
    """The output that says how good a model is: a mean average precision, `accuracy`, the last whose name has `acc`."""
    names = list(outputs)
    found = [name for name in names if name in _PRECISIONS]
    found = found or [name for name in names if "acc" in name.lower()]
    if not found:
        return None
    return "accuracy" if "accuracy" in found else found[-1]


def score_in(metrics: Mapping[str, float]) -> float | None:
    """Its value; None also where that is not available."""
    output = score_among(metrics)
    return None if output is None or isnan(metrics[output]) else metrics[output]


def name_of_score(outputs: Iterable[str]) -> str:
    """What that output is, in words."""
    return "mean average precision" if score_among(outputs) in _PRECISIONS else "accuracy"


def watched_of(outputs: Iterable[str], best_by: str = "", target: str = "") -> Watched | None:
    """What tells which of two models is better: what was asked for, the target's output, `score_among`, a loss.

    None if nothing was asked for and no output is named so.
    """
    if best_by:
        return parse_best_by(best_by)
    if target:
        return parse_condition(target).is_about
    names = list(outputs)
    score = score_among(names)
    if score is not None:
        return Watched(score, True)
    losses = [name for name in names if "loss" in name.lower()]
    return Watched("loss" if "loss" in names else losses[0], False) if losses else None
