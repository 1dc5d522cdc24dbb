"""The rule of Downpour SGD: each delta is added when it arrives.

Dean et al., Large Scale Distributed Deep Networks, NIPS 2012, section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from speedo.sgd_modes.rules.arithmetic import add_scaled
from speedo.sgd_modes.rules.base import Contribution, MergeRule
from speedo.sgd_modes.rules.state import NO_STATE, State
from speedo.vectors.vector import Vector


@dataclass(frozen=True)
class AddDelta(MergeRule):
    """Downpour's rule: center += scale * delta (Dean et al. 2012, section 4.1, with a scale).

    `scale` None means min(1, whole / n) for n live workers. Each worker keeps its own momentum, which sees every n-th
    step of the center, so it acts n times as long as that of one solver. With momentum 0.9 two workers whose deltas
    are added whole converge, and four diverge at the rate that one bears. With momentum correction four converge.

    `by_staleness`: also divided by the result's staleness tau, if that is above 1 (Zhang, Gupta, Lian, Liu,
    Staleness-aware Async-SGD for Distributed Deep Learning, IJCAI 2016, section 3: alpha / tau).
    """

    name: ClassVar[str] = "add-delta"
    rounds: ClassVar[bool | None] = False
    by_ranges: ClassVar[bool] = True
    keeps_finite: ClassVar[bool] = True
    paper: ClassVar[str] = "Dean et al."
    year: ClassVar[int] = 2012
    option: ClassVar[str] = "delta_scale"
    usual: ClassVar[str] = (
        "min(1, 4 / workers); without momentum correction min(1, 2 / workers); with staleness scaling 1"
    )
    source: ClassVar[str] = "measured: modes.md, momentum and the scale of deltas"
    scale: float | None = None
    whole: float = 2.0
    by_staleness: bool = False

    def rate(self, workers: int, staleness: int = 0) -> float:
        scale = min(1.0, self.whole / max(workers, 1)) if self.scale is None else self.scale
        return scale / max(staleness, 1) if self.by_staleness else scale

    def merge(
        self,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        for contribution in contributions:
            add_scaled(center, contribution.vector, rate)


RULE = AddDelta
