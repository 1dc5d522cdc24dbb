"""What each layer of a deploy net takes: parameters, multiply-adds, memory of what it makes; nothing is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from caffenets.graph import NetGraph
from caffenets.layer import LayerContext, Shape

BYTES: Final = 4  # of a float32


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Of one layer in a forward pass of the batch that the net's inputs have.

    `tops` are the shapes of what it makes, `parameters` counts values (one that layers share, at the first of them),
    `multiply_adds` those of convolutions, deconvolutions, inner products and recurrent layers, as papers count them.
    `made_bytes` is the memory of its tops in float32; a layer that works in place needs none.
    """

    name: str
    type: str
    tops: tuple[Shape, ...]
    parameters: int
    multiply_adds: int
    made_bytes: int


def costs_of(deploy: Any) -> list[LayerCost]:
    """Of each layer, in their order. Raises `EngineError`, which names a layer."""
    graph, found, shared = NetGraph(deploy, "TEST", LayerContext("TEST")), [], set[str]()
    for wired in graph.wired:
        layer = wired.layer
        bottoms = [graph.all_shapes[number] for number in wired.bottoms]
        tops = [graph.all_shapes[number] for number in wired.tops]
        names = [layer.param_name(number) for number in range(len(layer.blobs))]
        own = [blob for blob, name in zip(layer.blobs, names, strict=True) if name not in shared]
        shared.update(filter(None, names))
        fresh = [
            shape
            for at, shape in enumerate(tops)
            if layer.param.top[at] not in layer.param.bottom[at : at + 1]
        ]
        found.append(
            LayerCost(
                layer.name,
                str(layer.param.type),
                tuple(tops),
                sum(math.prod(blob.shape) for blob in own),
                _multiply_adds(
                    layer.param.type, [blob.shape for blob in layer.blobs], bottoms, tops
                ),
                BYTES * sum(map(math.prod, fresh)),
            )
        )
    return found


def _multiply_adds(
    kind: str, blobs: Sequence[Shape], bottoms: Sequence[Shape], tops: Sequence[Shape]
) -> int:
    """Each value of the weights is used once at each place: of the output, and of the input of a deconvolution."""
    match kind:
        case "Convolution" | "DepthwiseConvolution" | "ConvolutionDepthwise":
            return math.prod(blobs[0]) * sum(_places(top) for top in tops)
        case "Deconvolution":
            return math.prod(blobs[0]) * sum(_places(bottom) for bottom in bottoms)
        case "InnerProduct":
            return math.prod(blobs[0]) * (math.prod(tops[0]) // tops[0][-1])
        case "LSTM" | "RNN":
            steps = bottoms[0][0] * bottoms[0][1]
            return steps * sum(math.prod(blob) for blob in blobs if len(blob) > 1)
    return 0


def _places(shape: Shape) -> int:
    return math.prod(shape) // shape[1]
