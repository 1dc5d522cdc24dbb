"""Caffe's six solver updates in NumPy, block by block of a flat float32 vector; no Caffe is needed.

A rule makes of a gradient, already clipped and with its weight decay, what is subtracted from the weights. The order
of operations is Caffe's, each rounded to float32 (Caffe: solvers/*_solver.cpp, ComputeUpdateValue). Two roundings
differ: OpenBLAS fuses a multiplication with an addition where the processor can, and Caffe squares and takes roots by
`powf`, whose last bit may be wrong. With routines that fuse nothing, SGD and Nesterov are Caffe's to the bit. No value
depends on another, so the bits are the same however a vector is cut.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from speedo.exchange.vector import Vector


def float32(value: float) -> float:
    """`value` rounded to float32; infinite where it is too large."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


@dataclass(frozen=True, slots=True)
class SolverFields:
    """The fields of a SolverParameter that an update needs, by Caffe's names and with its defaults.

    `l1` says whether `regularization_type` is L1; else it is L2.
    """

    type: str = "SGD"
    momentum: float = 0.0
    momentum2: float = 0.999
    rms_decay: float = 0.99
    delta: float = 1e-8
    weight_decay: float = 0.0
    l1: bool = False
    clip_gradients: float = -1.0
    iter_size: int = 1

    @classmethod
    def from_solver(cls, parameter: Any) -> SolverFields:
        """Those of a SolverParameter that `solver_problems` has passed."""
        return cls(
            str(parameter.type),
            float(parameter.momentum),
            float(parameter.momentum2),
            float(parameter.rms_decay),
            float(parameter.delta),
            float(parameter.weight_decay),
            str(parameter.regularization_type) == "L1",
            float(parameter.clip_gradients),
            int(parameter.iter_size),
        )

    @property
    def clips(self) -> bool:
        """Whether the norm of the gradient has a bound; 0 is one, as in Caffe."""
        return self.clip_gradients >= 0


class UpdateRule(ABC):
    """One solver type. `vectors` is how many histories of the parameters' length it keeps."""

    vectors: ClassVar[int] = 1

    def __init__(self, fields: SolverFields) -> None:
        self._momentum = float32(fields.momentum)
        self._delta = float32(fields.delta)

    def scale(self, update: int) -> float:
        """A factor of the learning rate at the solver's own update of this number, counted from 1."""
        return 1.0

    @abstractmethod
    def step(
        self, g: Vector, history: Sequence[Vector], u: Vector, t: Vector, rate: float
    ) -> Vector:
        """What is to be subtracted from the weights; `history` is brought up to date.

        All vectors have the gradient's length. `g` stays as it is; `u` and `t` are free memory, and the answer may
        are in it or in a history. `rate` is a float32 value.
        """


class Sgd(UpdateRule):
    """h = momentum h + rate g, subtract h."""

    def step(
        self, g: Vector, history: Sequence[Vector], u: Vector, t: Vector, rate: float
    ) -> Vector:
        (h,) = history
        _decay_and_add(h, self._momentum, g, rate, u)
        return h


class Nesterov(UpdateRule):
    """As SGD, then subtract (1 + momentum) h - momentum h before it."""

    def __init__(self, fields: SolverFields) -> None:
        super().__init__(fields)
        self._over = float32(1.0 + self._momentum)

    def step(
        self, g: Vector, history: Sequence[Vector], u: Vector, t: Vector, rate: float
    ) -> Vector:
        (h,) = history
        np.multiply(h, -self._momentum, out=u)
        _decay_and_add(h, self._momentum, g, rate, t)
        np.multiply(h, self._over, out=t)
        u += t
        return u


class AdaGrad(UpdateRule):
    """h = h + g^2, subtract rate g / (sqrt(h) + delta)."""

    def step(
        self, g: Vector, history: Sequence[Vector], u: Vector, t: Vector, rate: float
    ) -> Vector:
        (h,) = history
        np.multiply(g, g, out=u)
        h += u
        return _over_root(g, h, self._delta, rate, u)


class RmsProp(UpdateRule):
    """h = rms_decay h + (1 - rms_decay) g^2, subtract rate g / (sqrt(h) + delta)."""

    def __init__(self, fields: SolverFields) -> None:
        super().__init__(fields)
        self._decay = float32(fields.rms_decay)
        self._rest = float32(1.0 - self._decay)

    def step(
        self, g: Vector, history: Sequence[Vector], u: Vector, t: Vector, rate: float
    ) -> Vector:
        (h,) = history
        np.multiply(g, g, out=u)
        _decay_and_add(h, self._decay, u, self._rest, u)
        return _over_root(g, h, self._delta, rate, u)


class AdaDelta(UpdateRule):
    """h = momentum h + (1 - momentum) g^2; u = g sqrt((d + delta) / (h + delta));
    d = momentum d + (1 - momentum) u^2; subtract rate u. h comes before d in the history."""

    vectors = 2

    def __init__(self, fields: SolverFields) -> None:
        super().__init__(fields)
        self._rest = float32(1.0 - self._momentum)

    def step(
        self, g: Vector, history: Sequence[Vector], u: Vector, t: Vector, rate: float
    ) -> Vector:
        h, d = history
        np.multiply(g, g, out=u)
        _decay_and_add(h, self._momentum, u, self._rest, u)
        np.add(h, self._delta, out=t)
        np.add(d, self._delta, out=u)
        u /= t
        np.sqrt(u, out=u)
        u *= g
        np.multiply(u, u, out=t)
        _decay_and_add(d, self._momentum, t, self._rest, t)
        u *= rate
        return u


class Adam(UpdateRule):
    """m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; subtract rate m / (sqrt(v) + delta).

    The rate is corrected for the bias of both. beta1 is `momentum`, beta2 `momentum2`; m comes before v in the history.
    """

    vectors = 2

    def __init__(self, fields: SolverFields) -> None:
        super().__init__(fields)
        self._rest = float32(1.0 - self._momentum)
        self._momentum2 = float32(fields.momentum2)
        self._rest2 = float32(1.0 - self._momentum2)

    def scale(self, update: int) -> float:
        """sqrt(1 - beta2^t) / (1 - beta1^t), in double precision as in Caffe, whose `pow` has an integer exponent."""
        root = math.sqrt(1.0 - math.pow(self._momentum2, update))
        return float32(root / (1.0 - math.pow(self._momentum, update)))

    def step(
        self, g: Vector, history: Sequence[Vector], u: Vector, t: Vector, rate: float
    ) -> Vector:
        m, v = history
        _decay_and_add(m, self._momentum, g, self._rest, u)
        np.multiply(g, g, out=u)
        _decay_and_add(v, self._momentum2, u, self._rest2, u)
        return _over_root(m, v, self._delta, rate, u)


RULES: Final[Mapping[str, type[UpdateRule]]] = {
    "SGD": Sgd,
    "Nesterov": Nesterov,
    "AdaGrad": AdaGrad,
    "RMSProp": RmsProp,
    "AdaDelta": AdaDelta,
    "Adam": Adam,
}


def _decay_and_add(h: Vector, decay: float, x: Vector, factor: float, scratch: Vector) -> None:
    """h = decay h + factor x; `scratch` may be `x`."""
    h *= decay
    np.multiply(x, factor, out=scratch)
    h += scratch


def _over_root(x: Vector, h: Vector, delta: float, rate: float, u: Vector) -> Vector:
    """rate x / (sqrt(h) + delta), in `u`."""
    np.sqrt(h, out=u)
    u += delta
    np.divide(x, u, out=u)
    u *= rate
    return u
