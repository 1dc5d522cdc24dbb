"""What an exchange needs of a model: its weights as one flat vector. An `Engine` has it, and so has a user's own model.

`speedo.worker.array_weights` has it for NumPy arrays, `speedo.engines.pytorch.module_weights` for a PyTorch module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from speedo.exchange.vector import Blob, Layout, Vector


class Weights(Protocol):
    """A model's weights. Vectors are flat float32 of `layout.size` values, owned by the caller."""

    @property
    def layout(self) -> Layout: ...

    def read_weights(self, out: Vector) -> None:
        """Copy the weights into `out`."""
        ...

    def load_weights(self, vector: Vector) -> None:
        """Copy `vector` into the weights; the optimizer's history stays."""
        ...

    def change_weights(self, change: Callable[[Blob, slice, Vector], None]) -> None:
        """Call `change(blob, place, weights)` for every blob: `weights` is its memory, `place` its part of a vector."""
        ...


def subtract_center(weights: Vector, center: Vector, layout: Layout) -> None:
    """Make a delta of the weights, in place. Moving averages stay values: see `Blob.average`."""
    averages = [(place, weights[place].copy()) for place in layout.averages]
    weights -= center
    for place, values in averages:
        weights[place] = values
