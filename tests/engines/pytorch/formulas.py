"""One layer of the PyTorch engine alone, where no BVLC Caffe has it: its tops, and its gradients by finite differences.

No tests itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from google.protobuf import text_format
from numpy.typing import NDArray

from caffenets.caffe_schema import caffe_pb2


def layer_of(
    text: str, shapes: Sequence[tuple[int, ...]], phase: str = "TRAIN", tops: int = 1
) -> tuple[Any, Any]:
    """The layer with this inside of a prototxt's `layer { }`, after its setup; and the shapes of its tops."""
    from caffenets.known_types import type_here
    from caffenets.layer import LayerContext
    from caffenets.layers import LAYERS

    named = " ".join(f'top: "top{at}"' for at in range(tops))
    net = text_format.Parse(f'layer {{ name: "tried" {named} {text} }}', caffe_pb2.NetParameter())
    layer = LAYERS[type_here(net.layer[0])](net.layer[0], LayerContext(phase, seed=1))
    return layer, layer.setup(shapes)


def tops_of(
    text: str,
    bottoms: Sequence[Any],
    blobs: Sequence[Any] = (),
    *,
    phase: str = "TRAIN",
    tops: int = 1,
) -> list[NDArray[Any]]:
    """The tops of the layer for these bottoms; their shapes are those that its setup says."""
    import torch

    arrays = [torch.from_numpy(np.asarray(bottom, np.float32)) for bottom in bottoms]
    layer, shapes = layer_of(text, [tuple(one.shape) for one in arrays], phase, tops)
    made = layer.forward(arrays, [torch.from_numpy(np.asarray(blob, np.float32)) for blob in blobs])
    layer.check_indices()
    assert len(made) == len(shapes)
    return [top.detach().numpy() for top in made]


def check_gradients(
    text: str, bottoms: Sequence[Any], blobs: Sequence[Any] = (), *, constant: Collection[int] = ()
) -> None:
    """Compares the gradients to bottoms and blobs with finite differences, in float64."""
    import torch

    values = [torch.from_numpy(np.asarray(one, np.float64)) for one in (*bottoms, *blobs)]
    layer, _ = layer_of(text, [tuple(one.shape) for one in values[: len(bottoms)]])
    learned = [at for at in range(len(values)) if at not in constant]

    def top(*some: Any) -> Any:
        given = list(values)
        for at, value in zip(learned, some, strict=True):
            given[at] = value
        return layer.forward(given[: len(bottoms)], given[len(bottoms) :])[0]

    inputs = [values[at].clone().requires_grad_(True) for at in learned]
    assert torch.autograd.gradcheck(top, inputs, eps=1e-6, atol=1e-6, rtol=1e-4)


def spread(shape: Sequence[int], seed: int = 0) -> NDArray[np.float64]:
    """Random values no two of which are close: neither maxima nor kinks are within a finite difference."""
    chance = np.random.default_rng(seed)
    count = int(np.prod(shape))
    values = (chance.permutation(count) + 0.5 - count / 2) / max(1, count) * 4
    return values.reshape(tuple(shape))
