"""What layers need of their bottoms."""

from __future__ import annotations

from torch import Tensor

from speedo.engines.pytorch.layers.axes import count


def rows(bottom: Tensor) -> Tensor:
    """A row for each item of the batch, also where an item is one number or the batch is empty."""
    shape = tuple(bottom.shape)
    return bottom.reshape(shape[0], count(shape, 1))
