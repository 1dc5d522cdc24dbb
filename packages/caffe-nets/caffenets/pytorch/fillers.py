"""The first values of parameters, drawn as Caffe's fillers draw them (Caffe: filler.hpp)."""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from caffenets.errors import EngineError
from caffenets.layer import Shape


def fill(filler: Any, shape: Shape, generator: Generator | None = None) -> Tensor:
    """A float32 tensor of `shape` with the values of a FillerParameter; zeros where `filler` is None.

    Distributions are Caffe's; the random numbers are those of `generator`, or of PyTorch's global one. Raises
    `EngineError` for an unknown type, and for options that Caffe refuses.
    """
    if filler is None:
        return torch.zeros(shape)
    draw = _FILLERS.get(filler.type)
    if draw is None:
        raise EngineError(
            f"filler type {filler.type!r} is unknown: use one of {', '.join(sorted(_FILLERS))}"
        )
    if prod(shape) == 0:
        raise EngineError(f"filler {filler.type} has nothing to fill in a blob of shape {shape}")
    if filler.sparse < -1 or (filler.sparse != -1 and filler.type != "gaussian"):
        raise EngineError(
            f"filler {filler.type} has sparse {filler.sparse}: only gaussian takes sparse, 0 or more"
        )
    return draw(filler, shape, generator)


def _constant(filler: Any, shape: Shape, generator: Generator | None) -> Tensor:
    return torch.full(shape, filler.value, dtype=torch.float32)


def _uniform(filler: Any, shape: Shape, generator: Generator | None) -> Tensor:
    low, high = filler.min, filler.max
    if low > high:
        raise EngineError(f"filler uniform has min {low} above max {high}: swap them")
    return torch.empty(shape).uniform_(low, high, generator=generator)


def _gaussian(filler: Any, shape: Shape, generator: Generator | None) -> Tensor:
    if not filler.std > 0:
        raise EngineError(
            f"filler gaussian has std {filler.std}: use more than 0, or type constant"
        )
    values = torch.empty(shape).normal_(filler.mean, filler.std, generator=generator)
    if filler.sparse >= 0:
        # Caffe divides by the first axis, its outputs.
        probability = filler.sparse / _first(filler, shape)
        if probability > 1:
            raise EngineError(
                f"filler gaussian has sparse {filler.sparse} of {shape[0]} outputs: use at most that"
            )
        values *= torch.empty(shape).bernoulli_(probability, generator=generator)
    return values


def _positive_unitball(filler: Any, shape: Shape, generator: Generator | None) -> Tensor:
    values = torch.rand(shape, generator=generator).reshape(_first(filler, shape), -1)
    return (values / values.sum(1, keepdim=True)).reshape(shape)


def _xavier(filler: Any, shape: Shape, generator: Generator | None) -> Tensor:
    limit = sqrt(3 / _fan(filler, shape))
    return torch.empty(shape).uniform_(-limit, limit, generator=generator)


def _msra(filler: Any, shape: Shape, generator: Generator | None) -> Tensor:
    return torch.empty(shape).normal_(0, sqrt(2 / _fan(filler, shape)), generator=generator)


def _bilinear(filler: Any, shape: Shape, generator: Generator | None) -> Tensor:
    if len(shape) != 4 or shape[2] != shape[3]:
        raise EngineError(f"filler bilinear needs a square kernel of 2 axes, and has shape {shape}")
    width = shape[3]
    half = (width + 1) // 2
    center = np.float32((width - 1) / (2.0 * half))
    away = np.abs(np.arange(width, dtype=np.float32) / np.float32(half) - center)
    weights = np.float32(1) - away
    kernel = torch.from_numpy(np.outer(weights, weights))
    return kernel.expand(shape).clone()


def _fan(filler: Any, shape: Shape) -> float:
    """Inputs, outputs or their mean, by `variance_norm`."""
    fan_in = prod(shape) // _first(filler, shape)
    fan_out = prod(shape) // shape[1] if len(shape) > 1 else prod(shape)
    kinds = filler.DESCRIPTOR.fields_by_name["variance_norm"].enum_type
    kind = kinds.values_by_number[filler.variance_norm].name
    return {"FAN_IN": fan_in, "FAN_OUT": fan_out, "AVERAGE": (fan_in + fan_out) / 2}[kind]


def _first(filler: Any, shape: Shape) -> int:
    if not shape:
        raise EngineError(f"filler {filler.type} needs a blob with axes: use constant for a scalar")
    return shape[0]


_FILLERS: dict[str, Callable[[Any, Shape, Generator | None], Tensor]] = {
    "bilinear": _bilinear,
    "constant": _constant,
    "gaussian": _gaussian,
    "msra": _msra,
    "positive_unitball": _positive_unitball,
    "uniform": _uniform,
    "xavier": _xavier,
}
