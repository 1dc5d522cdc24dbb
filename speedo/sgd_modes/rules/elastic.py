"""Elastic averaging: the rule of EASGD, and the half of it that is the worker's.

Zhang, Choromanska, LeCun, Deep Learning with Elastic Averaging SGD, NIPS 2015, equations 5 and 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from speedo.exchange.vector import Vector
from speedo.messages import Kind
from speedo.sgd_modes.rules.base import Contribution, MergeRule, blocks, scratch_blocks
from speedo.sgd_modes.rules.state import NO_STATE, State
from speedo.system.bounds import Interval, Option

MOVING_RATE = Option(
    "Alpha of elastic averaging.",
    Interval(
        "(0, 1)",
        "the pull must be above 0 and below 1; 0.9 divided by the number of workers is the usual choice",
    ),
    metavar="A",
)


@dataclass(frozen=True)
class Elastic(MergeRule):
    """Elastic averaging (Zhang, Choromanska, LeCun 2015, eq. 5 and 6): the center's half.

    d = alpha (x_w - center); center += d. The worker's half, x_w -= d, is `pull_towards`. `moving_rate` is alpha; None
    means the paper's 0.9 / n for n live workers.
    """

    name: ClassVar[str] = "elastic"
    payload: ClassVar[Kind] = Kind.WEIGHTS
    rounds: ClassVar[bool | None] = False
    by_ranges: ClassVar[bool] = True
    foreseen: ClassVar[bool] = True
    keeps_finite: ClassVar[bool] = True
    paper: ClassVar[str] = "Zhang, Choromanska, LeCun"
    year: ClassVar[int] = 2015
    option: ClassVar[str] = "moving_rate"
    usual: ClassVar[str] = "0.9 / workers"
    source: ClassVar[str] = "Zhang, Choromanska, LeCun 2015"
    moving_rate: Annotated[float | None, MOVING_RATE] = None

    def rate(self, workers: int, staleness: int = 0) -> float:
        return self.moving_rate if self.moving_rate is not None else 0.9 / max(workers, 1)

    def merge(
        self,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        Elastic.merge_into(self, center, center, contributions, rate, iteration, state)

    def merge_into(
        self,
        out: Vector,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        alpha = np.float32(rate)
        with scratch_blocks(1) as (scratch,):
            for contribution in contributions:
                for block in blocks(center.size):
                    pull = scratch[: block.stop - block.start]
                    np.subtract(contribution.vector[block], center[block], out=pull)
                    pull *= alpha
                    np.add(center[block], pull, out=out[block])
                center = out


def pull_towards(local: Vector, center: Vector, alpha: float, sent: Vector | None = None) -> None:
    """The worker's half of elastic averaging: x_w -= alpha (x_w - center before the merge), in place.

    Only the center after the merge is sent. As center' = center + alpha (x_w - center), the distance before
    was x_w - center = (x_w - center') / (1 - alpha), so alpha must be below 1. `sent` is the x_w that was merged,
    if the worker has trained on since: the worker still loses exactly what the center gained.
    """
    share = np.float32(alpha / (1.0 - alpha))
    with scratch_blocks(1) as (scratch,):
        for block in blocks(local.size):
            way = scratch[: block.stop - block.start]
            np.subtract((local if sent is None else sent)[block], center[block], out=way)
            way *= share
            local[block] -= way


RULE = Elastic
