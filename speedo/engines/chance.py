"""The loss of a net that knows nothing: each class has the same probability."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from speedo.engines.label_rules import classes_of


def loss_of_guessing(net: Any, shapes: Mapping[str, tuple[int, ...]]) -> float | None:
    """Sum of weight times ln(classes) over the softmax losses of a NetParameter; None if it has other losses.

    `shapes` are those of the blobs of the net as built, by name. Caffe: softmax_loss_layer.cpp, loss_layer.cpp.
    """
    total = 0.0
    for layer in net.layer:
        weight = layer.loss_weight[0] if layer.loss_weight else float(layer.type.endswith("Loss"))
        if not weight:
            continue
        known = classes_of(layer, shapes) if layer.type == "SoftmaxWithLoss" else None
        classes = 0 if known is None else known.number
        if classes < 2 or not _is_mean(layer.loss_param, shapes[layer.bottom[0]], classes):
            return None
        total += weight * math.log(classes)
    return total if total > 0 else None


def _is_mean(parameter: Any, shape: tuple[int, ...], classes: int) -> bool:
    """Whether the loss is the mean over all that has a label."""
    by_batch = parameter.normalization == parameter.BATCH_SIZE
    if not parameter.HasField("normalization") and parameter.HasField("normalize"):
        by_batch = not parameter.normalize
    places = math.prod(shape) // (shape[0] * classes)
    return bool(parameter.normalization != parameter.NONE and (places == 1 or not by_batch))
