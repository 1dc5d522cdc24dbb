"""`torch.nn.SyncBatchNorm` over the workers of a run, in the place of torch.distributed.

Each worker adds up its values and their squares by channel; the sums of all workers are the batch's. In the backward
pass the gradients of the sums are added up in the same way, so the gradients are those of one process with all records
(Ioffe and Szegedy, 2015, algorithm 1), if all workers have as many records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, SyncBatchNorm

from speedo.exchange.vector import Vector

AddUp = Callable[[Vector], None]  # makes a vector the sum of those of all workers, in place


class Synchronised:
    """The SyncBatchNorm layers of a model, which `add_up` joins, until `remove()`."""

    def __init__(self, model: Module, add_up: AddUp) -> None:
        self._layers = [one for one in model.modules() if isinstance(one, SyncBatchNorm)]
        for layer in self._layers:
            self._replace(layer, add_up)

    @staticmethod
    def _replace(layer: SyncBatchNorm, add_up: AddUp) -> None:
        own: Any = layer.forward

        def forward(x: Tensor) -> Tensor:
            return _normalised(layer, x, add_up) if layer.training else own(x)

        vars(layer)["forward"] = forward

    def remove(self) -> None:
        for layer in self._layers:
            del layer.forward


class _Sum(torch.autograd.Function):
    """The sum over all workers; its gradient is that of all workers, too."""

    @staticmethod
    def forward(context: Any, add_up: AddUp, values: Tensor) -> Tensor:
        context.add_up = add_up
        return _added_up(values, add_up)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, _added_up(gradients[0], context.add_up)


def _added_up(values: Tensor, add_up: AddUp) -> Tensor:
    vector = values.detach().cpu().float().numpy().copy()
    add_up(vector)
    return torch.from_numpy(vector).to(values)


def _normalised(layer: SyncBatchNorm, x: Tensor, add_up: AddUp) -> Tensor:
    axes = [axis for axis in range(x.dim()) if axis != 1]
    wide = x.float()
    own = x.new_tensor([x.numel() / x.shape[1]], dtype=torch.float32)
    sums = torch.cat([wide.sum(axes), wide.square().sum(axes), own])
    total: Tensor = _Sum.apply(add_up, sums)
    count = total[-1].detach()
    mean, square = (total[:-1] / count).chunk(2)
    variance = square - mean.square()
    if layer.track_running_stats:
        _follow(layer, mean.detach(), (variance * count / (count - 1).clamp_min(1)).detach())
    shape = [1, -1, *[1] * (x.dim() - 2)]
    scale = (variance + layer.eps).rsqrt()
    if layer.affine:
        scale = scale * layer.weight
    shift = -mean * scale if not layer.affine else layer.bias - mean * scale
    return (wide * scale.view(shape) + shift.view(shape)).to(x.dtype)


def _follow(layer: SyncBatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Update the moving averages."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    assert layer.num_batches_tracked is not None
    layer.num_batches_tracked.add_(1)
    rate = 1.0 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    for average, new in ((layer.running_mean, mean), (layer.running_var, variance)):
        average.data.lerp_(new.to(average), rate)
