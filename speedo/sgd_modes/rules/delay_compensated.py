"""Delay compensation: each delta is corrected for how far the center has moved since its worker began.

Zheng et al., Asynchronous Stochastic Gradient Descent with Delay Compensation, ICML 2017: DC-ASGD-a.
The gradient g(center) is about g(begun) + H (center - begun), and lambda g * g stands for the diagonal of H.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np

from speedo.exchange.vector import Vector
from speedo.sgd_modes.rules.add_delta import AddDelta
from speedo.sgd_modes.rules.base import Contribution, blocks, scratch_blocks
from speedo.sgd_modes.rules.state import NO_STATE, State
from speedo.system.bounds import Interval, Option

EPSILON: Final = np.float32(1e-11)  # the paper's 1e-7 of a gradient, at a learning rate of 0.01

COMPENSATION = Option(
    "Lambda, the strength of the correction.", Interval("[0, 100]", "use 0, which corrects nothing, to 100"),
    source="Zheng et al. 2017")  # fmt: skip
MEAN_SQUARE = Option(
    "Decay of the running mean of squared deltas, per merge.", Interval("[0, 1)", "use 0 or more, below 1"),
    source="likewise")  # fmt: skip


@dataclass(frozen=True)
class DelayCompensated(AddDelta):
    """center += scale * (d - lambda * d * d / sqrt(s + epsilon) * (center - begun)), value by value.

    s = m * s + (1 - m) * d * d is the rule's state. In the paper gradients take the place of deltas. With d = -lr * g
    this is the same step: d * d / sqrt(s) is lr * g * g over the root of the mean square of g. So no learning rate is
    needed. A delta of several local steps is taken for one step.
    """

    name: ClassVar[str] = "delay-compensated"
    vectors: ClassVar[tuple[str, ...]] = ("mean_square",)
    wants_begun: ClassVar[bool] = True
    by_ranges: ClassVar[bool] = True
    keeps_finite: ClassVar[bool] = True
    paper: ClassVar[str] = "Zheng et al."
    year: ClassVar[int] = 2017
    compensation: Annotated[float, COMPENSATION] = 2.0
    mean_square: Annotated[float, MEAN_SQUARE] = 0.95

    def merge(
        self,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        kept, fresh = np.float32(self.mean_square), np.float32(1.0 - self.mean_square)
        strength, scale = np.float32(self.compensation), np.float32(rate)
        with scratch_blocks(2) as taken:
            for one in contributions:
                assert one.begun is not None  # as `wants_begun`
                for block in blocks(center.size):
                    step, other = (scratch[: block.stop - block.start] for scratch in taken)
                    delta, mean = one.vector[block], state.vectors["mean_square"][block]
                    np.multiply(delta, delta, out=step)
                    mean *= kept
                    np.multiply(step, fresh, out=other)
                    mean += other
                    np.add(mean, EPSILON, out=other)
                    np.sqrt(other, out=other)
                    step /= other
                    np.subtract(center[block], one.begun[block], out=other)
                    step *= other
                    step *= strength
                    np.subtract(delta, step, out=step)
                    step *= scale
                    center[block] += step


RULE = DelayCompensated
