"""Caffe's seven learning-rate policies as functions of the global iteration.

Caffe computes in float32, with `pow` promoted to double where its exponent is an integer
(Caffe: solvers/sgd_solver.cpp, GetLearningRate, Dtype = float).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from speedo.engines.update_rules import float32

# Each policy with the solver fields that it needs; Caffe reads an absent one as zero.
REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "fixed": (),
    "step": ("gamma", "stepsize"),
    "exp": ("gamma",),
    "inv": ("gamma", "power"),
    "multistep": ("gamma", "stepvalue"),
    "poly": ("power",),
    "sigmoid": ("gamma", "stepsize"),
}


def _power(base: float, exponent: float) -> float:
    """As C's `pow`: infinite if the result is too large, NaN if it is not real."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf
    except ValueError:
        return math.inf if base == 0 else math.nan


@dataclass(frozen=True, slots=True)
class LrPolicy:
    """A policy with its parameters; `rate` keeps no state, so iterations may come in any order.

    Over the first `warm_up` iterations the rate rises in a line from a tenth of the policy's to the whole (Goyal et
    al., Accurate, Large Minibatch SGD, 2017, section 2.2). Caffe has none.
    """

    policy: str
    base_lr: float
    gamma: float = 0.0
    power: float = 0.0
    stepsize: int = 0
    stepvalues: tuple[int, ...] = ()
    max_iter: int = 0
    warm_up: int = 0

    @classmethod
    def from_solver(cls, parameter: Any) -> LrPolicy:
        """The policy of a SolverParameter that `solver_problems` has passed."""
        return cls(
            str(parameter.lr_policy),
            float(parameter.base_lr),
            float(parameter.gamma),
            float(parameter.power),
            int(parameter.stepsize),
            reached_at(parameter.stepvalue),
            int(parameter.max_iter),
        )

    def rate(self, iteration: int) -> float:
        """The learning rate of this iteration, a float32 value.

        `poly` stays at 0 beyond `max_iter`, where Caffe's formula has no real value.
        """
        rate = self.base_lr * self._factor(iteration)
        if iteration < self.warm_up:
            rate *= 0.1 + 0.9 * iteration / self.warm_up
        return float32(rate)

    def from_base(self, lr: float) -> LrPolicy:
        """The same policy with another `base_lr`, a float32 value as the solver would have it."""
        return replace(self, base_lr=float32(lr))

    def steps_taken(self, iteration: int) -> int:
        """Caffe's `current_step` once it has computed the rate of this iteration; 0 for policies without steps."""
        match self.policy:
            case "step":
                return iteration // self.stepsize
            case "multistep":
                return bisect.bisect_right(self.stepvalues, iteration)
        return 0

    def _factor(self, iteration: int) -> float:
        match self.policy:
            case "fixed":
                return 1.0
            case "step":
                return _power(self.gamma, self.steps_taken(iteration))
            case "multistep":
                return _power(self.gamma, self.steps_taken(iteration))
            case "exp":
                return _power(self.gamma, iteration)
            case "inv":
                base = float32(1.0 + float32(float32(self.gamma) * iteration))
                return float32(_power(base, -self.power))
            case "poly":
                done = min(float32(iteration / self.max_iter), 1.0) if self.max_iter else 1.0
                return float32(_power(float32(1.0 - done), self.power))
            case "sigmoid":
                exponent = float32(-self.gamma * (iteration - self.stepsize))
                # Caffe's float32 overflows to infinity here, and the rate to zero.
                growth = float32(math.exp(exponent)) if exponent < 88.0 else math.inf
                return float32(1.0 / float32(1.0 + growth))
        raise ValueError(f"unknown learning-rate policy {self.policy!r}")


def reached_at(stepvalues: Sequence[int]) -> tuple[int, ...]:
    """The iteration at which Caffe takes each step: in order, at most one at a time."""
    reached: list[int] = []
    for value in stepvalues:
        reached.append(max(int(value), reached[-1] + 1) if reached else max(int(value), 0))
    return tuple(reached)
