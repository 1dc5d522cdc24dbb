"""Caffe's six solver updates, block by block of a flat float32 vector; no Caffe is needed.

A rule makes of a gradient, already clipped and with its weight decay, what is subtracted from the weights. The order
of operations is Caffe's, each rounded to float32 (Caffe: solvers/*_solver.cpp, ComputeUpdateValue). It computes with
arrays of NumPy, or with PyTorch's (`speedo.engines.pytorch.updates`), which fuses some operations.

With NumPy's two roundings differ from Caffe's: OpenBLAS fuses a multiplication with an addition where the processor
can, and Caffe squares and takes roots by `powf`, whose last bit may be wrong. With routines that fuse nothing, SGD and
Nesterov are Caffe's to the bit. No value depends on another, so the bits are the same however a vector is cut.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import numpy as np

Array = Any  # a flat float32 vector of NumPy, or a tensor


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


class Arithmetic(Protocol):
    """A library of arrays: its functions, and what some libraries do in one. `scratch` and `u` are free memory.

    A `rate` is a float32 value, or what stands for several of them.
    """

    @property
    def library(self) -> Any: ...

    def add(self, h: Array, x: Array, factor: Any, scratch: Array) -> None:
        """h += factor x; `factor` may be a rate, and `scratch` may be `x`."""
        ...

    def add_square(self, h: Array, x: Array, factor: float, scratch: Array) -> None:
        """h += factor x^2."""
        ...

    def scale(self, u: Array, rate: Any) -> Array:
        """u *= rate."""
        ...


class _NumPy:
    library = np

    def add(self, h: Array, x: Array, factor: Any, scratch: Array) -> None:
        np.multiply(x, factor, out=scratch)
        h += scratch

    def add_square(self, h: Array, x: Array, factor: float, scratch: Array) -> None:
        np.multiply(x, x, out=scratch)
        if factor != 1.0:
            scratch *= factor
        h += scratch

    def scale(self, u: Array, rate: Any) -> Array:
        u *= rate
        return u


class UpdateRule(ABC):
    """One solver type. `vectors` is how many histories of the parameters' length it keeps."""

    vectors: ClassVar[int] = 1

    def __init__(self, fields: SolverFields, arithmetic: Arithmetic | None = None) -> None:
        self._of = arithmetic or _NumPy()
        self._momentum = float32(fields.momentum)
        self._rest = float32(1.0 - self._momentum)
        self._momentum2 = float32(fields.momentum2)
        self._rest2 = float32(1.0 - self._momentum2)
        self._decay = float32(fields.rms_decay)
        self._delta = float32(fields.delta)

    def scale(self, update: int) -> float:
        """A factor of the learning rate at the solver's own update of this number, counted from 1."""
        return 1.0

    @abstractmethod
    def step(self, g: Array, history: Sequence[Array], u: Array, t: Array, rate: Any) -> Array:
        """What is to be subtracted from the weights; `history` is brought up to date.

        All arrays have the gradient's length. `g` stays as it is; `u` and `t` are free memory, and the answer may be
        in them or in a history.
        """

    def _over_root(self, x: Array, h: Array, rate: Any, u: Array) -> Array:
        """rate x / (sqrt(h) + delta), in `u`."""
        library = self._of.library
        library.sqrt(h, out=u)
        u += self._delta
        library.divide(x, u, out=u)
        return self._of.scale(u, rate)


class Sgd(UpdateRule):
    """h = momentum h + rate g, subtract h."""

    def step(self, g: Array, history: Sequence[Array], u: Array, t: Array, rate: Any) -> Array:
        (h,) = history
        h *= self._momentum
        self._of.add(h, g, rate, u)
        return h


class Nesterov(UpdateRule):
    """As SGD, then subtract (1 + momentum) h - momentum h before it."""

    def step(self, g: Array, history: Sequence[Array], u: Array, t: Array, rate: Any) -> Array:
        (h,) = history
        self._of.library.multiply(h, -self._momentum, out=u)
        h *= self._momentum
        self._of.add(h, g, rate, t)
        self._of.add(u, h, float32(1.0 + self._momentum), t)
        return u


class AdaGrad(UpdateRule):
    """h = h + g^2, subtract rate g / (sqrt(h) + delta)."""

    def step(self, g: Array, history: Sequence[Array], u: Array, t: Array, rate: Any) -> Array:
        (h,) = history
        self._of.add_square(h, g, 1.0, u)
        return self._over_root(g, h, rate, u)


class RmsProp(UpdateRule):
    """h = rms_decay h + (1 - rms_decay) g^2, subtract rate g / (sqrt(h) + delta)."""

    def step(self, g: Array, history: Sequence[Array], u: Array, t: Array, rate: Any) -> Array:
        (h,) = history
        h *= self._decay
        self._of.add_square(h, g, float32(1.0 - self._decay), u)
        return self._over_root(g, h, rate, u)


class AdaDelta(UpdateRule):
    """h = momentum h + (1 - momentum) g^2; u = g sqrt((d + delta) / (h + delta));
    d = momentum d + (1 - momentum) u^2; subtract rate u. h comes before d in the history."""

    vectors = 2

    def step(self, g: Array, history: Sequence[Array], u: Array, t: Array, rate: Any) -> Array:
        h, d = history
        library = self._of.library
        h *= self._momentum
        self._of.add_square(h, g, self._rest, u)
        library.add(h, self._delta, out=t)
        library.add(d, self._delta, out=u)
        u /= t
        library.sqrt(u, out=u)
        u *= g
        d *= self._momentum
        self._of.add_square(d, u, self._rest, t)
        return self._of.scale(u, rate)


class Adam(UpdateRule):
    """m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; subtract rate m / (sqrt(v) + delta).

    The rate is corrected for the bias of both. beta1 is `momentum`, beta2 `momentum2`; m comes before v in the history.
    """

    vectors = 2

    def scale(self, update: int) -> float:
        """sqrt(1 - beta2^t) / (1 - beta1^t), in double precision as in Caffe, whose `pow` has an integer exponent."""
        root = math.sqrt(1.0 - math.pow(self._momentum2, update))
        return float32(root / (1.0 - math.pow(self._momentum, update)))

    def step(self, g: Array, history: Sequence[Array], u: Array, t: Array, rate: Any) -> Array:
        m, v = history
        m *= self._momentum
        self._of.add(m, g, self._rest, u)
        v *= self._momentum2
        self._of.add_square(v, g, self._rest2, u)
        return self._over_root(m, v, rate, u)


RULES: Final[Mapping[str, type[UpdateRule]]] = {
    "SGD": Sgd,
    "Nesterov": Nesterov,
    "AdaGrad": AdaGrad,
    "RMSProp": RmsProp,
    "AdaDelta": AdaDelta,
    "Adam": Adam,
}
