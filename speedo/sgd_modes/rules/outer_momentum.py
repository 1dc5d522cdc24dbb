"""Outer momentum: the mean delta of a round is the gradient of an outer SGD with momentum.

Wang, Tantia, Ballas, Rabbat, SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum, ICLR 2020,
algorithm 1: without Nesterov's form, and with a learning rate of the local steps that does not change.
Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023, algorithm 1:
Nesterov's form, rate 0.7, momentum 0.9, some hundred local steps in a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from speedo.exchange.vector import Vector
from speedo.sgd_modes.rules.base import Contribution, MergeRule, blocks, mean_into, scratch_blocks
from speedo.sgd_modes.rules.state import NO_STATE, State
from speedo.system.bounds import Interval, Option

OUTER_LR = Option(
    "The outer learning rate.", Interval("(0, 10]", "use a rate above 0, usually at most 1"),
    source="Douillard et al. 2023")  # fmt: skip
OUTER_MOMENTUM = Option(
    "The momentum of the outer step.", Interval("[0, 1)", "use 0 or more, below 1"),
    source="likewise")  # fmt: skip
NESTEROV = Option("Use Nesterov's form of the outer momentum.", source="likewise")


@dataclass(frozen=True)
class OuterMomentum(MergeRule):
    """v = momentum * v + d; center += lr * (d + momentum * v) in Nesterov's form, else center += lr * v.

    d is the mean of the deltas, weighted by samples. v is the rule's state; it begins at 0.
    """

    name: ClassVar[str] = "outer-momentum"
    rounds: ClassVar[bool | None] = True
    vectors: ClassVar[tuple[str, ...]] = ("momentum",)
    by_ranges: ClassVar[bool] = True
    by_mean: ClassVar[bool] = True
    keeps_finite: ClassVar[bool] = True
    paper: ClassVar[str] = "Wang et al."
    year: ClassVar[int] = 2020
    outer_lr: Annotated[float, OUTER_LR] = 0.7
    outer_momentum: Annotated[float, OUTER_MOMENTUM] = 0.9
    nesterov: Annotated[bool, NESTEROV] = True

    def rate(self, workers: int, staleness: int = 0) -> float:
        return self.outer_lr

    def merge(
        self,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        factor, scale = np.float32(self.outer_momentum), np.float32(rate)
        with scratch_blocks(2) as taken:
            for block in blocks(center.size):
                mean, step = (scratch[: block.stop - block.start] for scratch in taken)
                mean_into(mean, [replace(one, vector=one.vector[block]) for one in contributions])
                momentum = state.vectors["momentum"][block]
                momentum *= factor
                momentum += mean
                if self.nesterov:
                    np.multiply(momentum, factor, out=step)
                    step += mean
                    step *= scale
                else:
                    np.multiply(momentum, scale, out=step)
                center[block] += step


RULE = OuterMomentum
