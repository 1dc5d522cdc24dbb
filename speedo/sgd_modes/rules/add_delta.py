"""The rule of Downpour SGD: each delta is added when it arrives.

Dean et al., Large Scale Distributed Deep Networks, NIPS 2012, section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, ClassVar, Self

from speedo.exchange.vector import Vector
from speedo.sgd_modes.rules.base import Contribution, MergeRule, OfARun, add_scaled
from speedo.sgd_modes.rules.state import NO_STATE, State
from speedo.system.bounds import Interval, Option

DELTA_SCALE = Option(
    "Factor on every merged delta.", Interval("(0, 10]", "use a factor above 0, usually at most 1")
)
STALENESS_SCALING = Option(
    "Divide each delta by its staleness, so that a delta from older weights moves the center less.",
    usual="the same factor for every delta",
    source="measured: modes.md, measured with real workers",
)


@dataclass(frozen=True)
class AddDelta(MergeRule):
    """Downpour's rule: center += scale * delta (Dean et al. 2012, section 4.1, with a scale).

    `delta_scale` None means min(1, whole / n) for n live workers. Each worker keeps its own momentum, which sees every
    n-th step of the center, so it acts n times as long as that of one solver. With momentum 0.9 two workers whose
    deltas are added whole converge, and four diverge at the rate that one bears. With momentum correction four do.
    `whole` is 1 for scripts that make several local steps: their optimizers are not corrected, and their momentum has
    come to its full length at the end of a turn.

    `staleness_scaling`: `whole` is without bound, and the scale is divided by the result's staleness tau, if that is
    above 1 (Zhang, Gupta, Lian, Liu, Staleness-aware Async-SGD for Distributed Deep Learning, IJCAI 2016, section 3:
    alpha / tau).
    """

    name: ClassVar[str] = "add-delta"
    rounds: ClassVar[bool | None] = False
    by_ranges: ClassVar[bool] = True
    foreseen: ClassVar[bool] = True
    keeps_finite: ClassVar[bool] = True
    paper: ClassVar[str] = "Dean et al."
    year: ClassVar[int] = 2012
    usual: ClassVar[str] = (
        "min(1, 4 / workers); without momentum correction min(1, 2 / workers); with staleness scaling 1; "
        "for scripts with several local steps 1 / workers"
    )
    source: ClassVar[str] = "measured: modes.md, momentum and the scale of deltas"
    delta_scale: Annotated[float | None, DELTA_SCALE] = None
    whole: float = 2.0
    staleness_scaling: Annotated[bool | None, STALENESS_SCALING] = None

    @classmethod
    def made(cls, values: Mapping[str, Any], run: OfARun) -> Self:
        whole = 4.0 if run.momentum_correction else 2.0
        return cls(whole=1.0 if run.uncorrected else whole, **values)

    def rate(self, workers: int, staleness: int = 0) -> float:
        whole = inf if self.staleness_scaling else self.whole
        scale = min(1.0, whole / max(workers, 1)) if self.delta_scale is None else self.delta_scale
        return scale / max(staleness, 1) if self.staleness_scaling else scale

    def merge(
        self,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        AddDelta.merge_into(self, center, center, contributions, rate, iteration, state)

    def merge_into(
        self,
        out: Vector,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        for contribution in contributions:
            add_scaled(center, contribution.vector, rate, out)
            center = out


RULE = AddDelta
