"""Arrays of this process in the place of those of a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from caffenets.weight_files.caffemodel import Model, StoredLayer
from caffenets.weight_files.stored import Stored, Values


@dataclass(frozen=True)
class _Held(Stored):
    values: Any = None

    def read(self) -> Values:
        return np.asarray(self.values, np.float32).reshape(self.shape)


def held_model(layers: dict[str, list[Any]]) -> Model:
    """A model with these arrays."""
    return Model(
        Path("held.caffemodel"),
        tuple(
            StoredLayer(
                name, tuple(_Held(Path(), name, one.shape, (), values=one) for one in blobs)
            )
            for name, blobs in layers.items()
        ),
    )
