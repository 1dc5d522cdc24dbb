"""`--lr scale=...`: what the solver's learning rate is multiplied by.

With elastic averaging each of n workers makes an n-th of the steps of one solver, and the center, the mean of them all,
bears larger ones. By default the rate is multiplied by n there, as Goyal et al. (Accurate, Large Minibatch SGD, 2017,
section 2.1) have it for a batch n times as large, but at most by 4: docs/modes.md has the measurements. `sqrt` is the
rule of Krizhevsky (One weird trick for parallelizing convolutional neural networks, 2014, section 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from speedo.system.bounds import said, whole_number

BY_WORKERS: Final[dict[str, Callable[[int], float]]] = {
    "none": lambda workers: 1.0,
    "sqrt": math.sqrt,
    "linear": float,
}
ELASTIC: Final = "linear:4"  # measured: with 8 times the rate CIFAR-10 quick nearly diverges
LARGEST: Final = 10_000.0


def check_lr_scale(name: str, value: str) -> list[str]:
    """A rule by its name, with the most that it may give or without, or a number."""
    rule, colon, most = value.partition(":")
    if rule in BY_WORKERS and (not colon or (whole_number(most) or 0) >= 1):
        return []
    try:
        factor = 0.0 if colon else float(value)
    except ValueError:
        factor = 0.0
    if 0 < factor <= LARGEST:
        return []
    rules = f"{', '.join(BY_WORKERS)}, linear:N (at most N times)"
    return [f"{name} is {said(value)}: use {rules}, or a number above 0, up to {LARGEST:g}"]


@dataclass(frozen=True, slots=True)
class LrScale:
    """A rule or a number, and the number of workers that it is for."""

    rule: str
    workers: int

    @property
    def factor(self) -> float:
        """What the rate of every iteration is multiplied by."""
        rule, _, most = self.rule.partition(":")
        if rule not in BY_WORKERS:
            return float(rule)
        factor = BY_WORKERS[rule](self.workers)
        return min(factor, float(most)) if most else factor

    def told(self) -> str:
        """How the rate differs from the solver's, for people; empty if it does not."""
        if self.factor == 1:
            return ""
        by_workers = (
            f" with {self.workers} workers" if self.rule.partition(":")[0] in BY_WORKERS else ""
        )
        return f"{self.factor:.3g} times the solver's: --lr scale={self.rule}{by_workers}"
