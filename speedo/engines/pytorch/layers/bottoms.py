"""What layers need of their bottoms: rows of them, and to be sure that some get no gradient."""

from __future__ import annotations

from torch import Tensor

from speedo.engines.pytorch.layer import Layer
from speedo.engines.pytorch.layers.axes import count


def rows(bottom: Tensor) -> Tensor:
    """A row for each item of the batch, also where an item is one number or the batch is empty."""
    shape = tuple(bottom.shape)
    return bottom.reshape(shape[0], count(shape, 1))


def without_gradient(layer: Layer, bottom: Tensor, what: str) -> Tensor:
    """`bottom`, once it is sure that nothing below it is trained through this layer.

    Caffe ends the process where a gradient is wanted here; this raises `EngineError`.
    """
    if bottom.requires_grad:
        raise layer.refuse(
            f"gives no gradient to its {what}, but a layer below is trained through them: "
            "set propagate_down: false for that bottom, or lr_mult: 0 below"
        )
    return bottom
