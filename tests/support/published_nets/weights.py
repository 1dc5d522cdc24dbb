"""Random weights for a net that keep what flows through it in the range of trained ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from caffenets.export.layered import draw_inputs
from caffenets.graph import NetGraph
from caffenets.layer import Layer, LayerContext
from caffenets.weight_files.caffemodel import write_model

_SUMS: Final = (
    0.999  # the weight of BatchNorm's sums, near that which Caffe's moving averages leave
)
_CODES: Final = 0.1  # the deviation of the codes of boxes, which move and stretch others

Blobs = Callable[[Layer, Sequence[Tensor]], list[Tensor]]


def draw_records(net: Any, seed: int = 1) -> dict[str, Any]:
    """Random values for the inputs of a deploy net; an `im_info` is true."""
    return with_sizes(draw_inputs(net, np.random.default_rng(seed)))


def with_sizes(records: dict[str, Any]) -> dict[str, Any]:
    """The same, where `im_info` has height, width and scale of the images, and `rois` are regions of the first."""
    for name, values in records.items():
        if name == "im_info":
            values[...] = (*records["data"].shape[2:], 1)
        elif name == "rois":
            low, extent = np.random.default_rng(1).integers(0, 200, (2, len(values), 2))
            values[...] = np.concatenate([np.zeros((len(values), 1)), low, low + extent + 16], 1)
    return records


def walked(
    net: Any, records: dict[str, Any], blobs_of: Blobs
) -> Iterator[tuple[Layer, list[Tensor], list[Tensor]]]:
    """Each layer of a deploy net with its blobs and its tops, computed one after another."""
    graph = NetGraph(net, "TEST", LayerContext("TEST"))
    values: dict[int, Tensor] = {}
    for wired in graph.wired:
        layer, blobs = wired.layer, list[Tensor]()
        if layer.param.type == "Input":
            tops = [torch.from_numpy(records[name]) for name in layer.param.top]
        else:
            bottoms = [values[number] for number in wired.bottoms]
            with torch.no_grad():
                blobs = blobs_of(layer, bottoms) if layer.blobs else []
                tops = list(layer.forward(bottoms, blobs))
        values.update(zip(wired.tops, tops, strict=True))
        yield layer, blobs, tops
        for number in wired.used_up:
            values.pop(number, None)


def save_weights(net: Any, path: Path, seed: int = 1) -> None:
    """Write a `.caffemodel` for a deploy net, drawn layer by layer as `_drawn` says.

    Names of shared parameters are those of the first layer that has them.
    """
    rng = np.random.default_rng(seed)
    shared: dict[str, Tensor] = {}

    def blobs_of(layer: Layer, bottoms: Sequence[Tensor]) -> list[Tensor]:
        drawn = _drawn(layer, bottoms, rng)
        for at, name in enumerate([str(one.name) for one in layer.param.param][: len(drawn)]):
            if name:
                drawn[at] = shared.setdefault(name, drawn[at]).reshape(drawn[at].shape)
        return drawn

    made = [
        (layer.param, [blob.numpy() for blob in blobs])
        for layer, blobs, _ in walked(net, draw_records(net, seed), blobs_of)
    ]
    with path.open("wb") as file:
        write_model(file, str(net.name), made)


def _drawn(layer: Layer, bottoms: Sequence[Tensor], rng: np.random.Generator) -> list[Tensor]:
    """What a layer makes of its bottom has the deviation 1, and a batch norm the statistics of its bottom.

    Biases shift upwards: around 0 a ReLU would cut half, and such a net, untrained, makes much of rounding, also
    Caffe's own.
    """
    param, shapes = layer.param, [tuple(spec.shape) for spec in layer.blobs]

    def normal(shape: Sequence[int], deviation: float) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape, np.float32) * np.float32(deviation))

    def around(shape: Sequence[int], low: float = 0.5, high: float = 1.5) -> Tensor:
        return torch.from_numpy(rng.uniform(low, high, shape).astype(np.float32))

    if param.type == "BatchNorm":
        mean, variance = _statistics(bottoms[0])
        return [mean * _SUMS, variance * _SUMS, torch.full(shapes[2], _SUMS)]
    if param.type in ("Scale", "BN"):
        statistics = _statistics(bottoms[0]) if len(shapes) == 4 else ()
        scale, shift = (around(shape) for shape in (shapes * 2)[:2])
        own = [scale, shift, *statistics]
        return [one.reshape(shape) for one, shape in zip(own, shapes, strict=False)]
    if param.type == "PReLU":
        return [around(shapes[0], 0.1, 0.4)]
    if param.type == "Normalize":
        return [around(shapes[0], 10, 20)]
    fan = math.prod(shapes[0][1:])
    if param.type == "Deconvolution":
        stride = max(param.convolution_param.stride or [1])
        fan = fan // max(shapes[0][1], 1) * shapes[0][0] // param.convolution_param.group
        fan = max(fan // stride**2, 1)
    elif param.type == "Embed":
        fan = 1
    power = float(bottoms[0].square().mean()) or 1.0
    linear = param.type not in ("Embed", "LSTM", "RNN", "Lstm")
    size = _CODES if layer.name.endswith(("bbox_pred", "mbox_loc")) else 1.0
    deviation = size / math.sqrt(fan * (power if linear else 1.0))
    return [
        normal(shape, deviation) if at == 0 or len(shape) > 1 else around(shape, 0, size)
        for at, shape in enumerate(shapes)
    ]


def _statistics(bottom: Tensor) -> tuple[Tensor, Tensor]:
    """Half the mean of each channel, and its variance around that, both as a vector.

    With all of the mean taken out, a random net doubles rounding at each BatchNorm, which a trained one does not.
    """
    values = bottom.transpose(0, 1).flatten(1)
    mean = values.mean(1) / 2
    variance = (values - mean[:, None]).square().mean(1)
    return mean, variance.clamp(min=float(variance.mean()) / 2)
