"""A merge by a rule that may be anybody's: what it makes is looked at before it is the center."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speedo.errors import SpeedoError, TrainingStopped
from speedo.exchange.vector import Vector
from speedo.sgd_modes.rules import Contribution, MergeRule, State
from speedo.sgd_modes.rules.base import title_of


def merge_by(
    rule: MergeRule,
    center: Vector,
    contributions: Sequence[Contribution],
    rate: float,
    iteration: int,
    state: State,
) -> None:
    """Merge in place. Raises `TrainingStopped`, with the center as it was, if the rule fails or the outcome is not
    finite; of a rule that keeps what is finite so, nothing is looked at."""
    if rule.keeps_finite:
        rule.merge(center, contributions, rate, iteration, state)
        return
    former, what = center.copy(), f"rule {title_of(type(rule))} at iteration {iteration}"
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            rule.merge(center, contributions, rate, iteration, state)
            finite = bool(np.isfinite(center).all()) and state.is_finite
        problem = "" if finite else "it made a center or a state that is not finite"
    except SpeedoError:
        raise
    except Exception as error:
        problem = f"it raised {type(error).__name__}: {error}"
    if problem:
        np.copyto(center, former)
        raise TrainingStopped(f"{what}: {problem}; correct the rule, or its options")
