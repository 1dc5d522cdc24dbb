"""The rule for what a team that trains alone reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from speedo.exchange.vector import Vector
from speedo.messages import Kind
from speedo.sgd_modes.rules.base import Contribution, MergeRule
from speedo.sgd_modes.rules.state import NO_STATE, State


@dataclass(frozen=True)
class TakeCenter(MergeRule):
    """The new center is what a team that trained alone made of it, round by round, by its rule `each`.

    Taken whole, so the outcome is the same to the bit however many rounds the team does between two reports.
    """

    payload: ClassVar[Kind] = Kind.WEIGHTS
    by_ranges: ClassVar[bool] = True
    keeps_finite: ClassVar[bool] = True
    each: MergeRule

    def rate(self, workers: int, staleness: int = 0) -> float:
        return self.each.rate(workers)

    def merge(
        self,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        (team,) = contributions
        np.copyto(center, team.vector)
