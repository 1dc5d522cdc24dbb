"""What an exchange needs of a model: its weights as one flat vector. An `Engine` has it, and so has a user's own model.

`speedo.worker.array_weights` has it for NumPy arrays, `speedo.engines.pytorch.module_weights` for a PyTorch module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

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


class ScriptWeights(Weights, Protocol):
    """Those of a model that a user's script trains."""

    def check_changes(self) -> None:
        """Raise `ScriptMistake` if the script changes something else than what it has joined with."""
        ...


def subtract_center(weights: Weights, memory: Vector) -> None:
    """Replace the center in `memory` by how far the weights came from it; moving averages by their values.

    See `Blob.average`.
    """

    def subtract(blob: Blob, place: slice, values: Vector) -> None:
        if blob.average:
            memory[place] = values
        else:
            np.subtract(values, memory[place], out=memory[place])

    weights.change_weights(subtract)
