"""The rule of synchronous SGD: the mean of the deltas of a round is added.

Zinkevich et al., Parallelized Stochastic Gradient Descent, NIPS 2010.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from speedo.exchange.vector import Vector
from speedo.sgd_modes.rules.add_delta import DELTA_SCALE
from speedo.sgd_modes.rules.base import Contribution, MergeRule, add_mean
from speedo.sgd_modes.rules.state import NO_STATE, State


@dataclass(frozen=True)
class AverageDeltas(MergeRule):
    """center += scale * sum_w (samples_w / samples) delta_w: the step of one solver with the whole batch."""

    name: ClassVar[str] = "average-deltas"
    rounds: ClassVar[bool | None] = True
    by_ranges: ClassVar[bool] = True
    by_mean: ClassVar[bool] = True
    adds_mean: ClassVar[bool] = True
    keeps_finite: ClassVar[bool] = True
    paper: ClassVar[str] = "Zinkevich et al."
    year: ClassVar[int] = 2010
    usual: ClassVar[str] = "1"
    source: ClassVar[str] = "the mean is the step of one solver"
    delta_scale: Annotated[float | None, DELTA_SCALE] = None

    def rate(self, workers: int, staleness: int = 0) -> float:
        return self.delta_scale if self.delta_scale is not None else 1.0

    def merge(
        self,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        AverageDeltas.merge_into(self, center, center, contributions, rate, iteration, state)

    def merge_into(
        self,
        out: Vector,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        add_mean(center, contributions, rate, out)


RULE = AverageDeltas
