"""What layers need of their bottoms: rows, full precision, and labels that are classes."""

from __future__ import annotations

from caffenets.layer import Layer
from caffenets.layers.axes import count
from caffenets.torch_later import Tensor, torch


def rows(bottom: Tensor) -> Tensor:
    """A row for each item of the batch, also where an item is one number or the batch is empty."""
    shape = tuple(bottom.shape)
    return bottom.reshape(shape[0], count(shape, 1))


def wide(values: Tensor) -> Tensor:
    """In float32 where they are less precise: for sums and losses."""
    return values if values.dtype == torch.float64 else values.float()


def checked_labels(layer: Layer, labels: Tensor, classes: int) -> Tensor:
    """`labels`, whole numbers that must be classes; see `Layer.checked`."""
    return layer.checked(
        labels,
        classes,
        f"read label {{}}, but has {classes} classes: labels go from 0 to {classes - 1}; "
        "correct the data or num_output",
    )
