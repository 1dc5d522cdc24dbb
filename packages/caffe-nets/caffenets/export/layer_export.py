"""What an exporter of a layer is: the layer's nodes in ONNX, and its expression in PyTorch.

A file in `layers/` that declares `EXPORTS`, classes named as Caffe's types, is found; no other file names it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from caffenets.declared import declared_in
from caffenets.export.onnx_graph import Graph
from caffenets.export.steps import Shape, Step
from caffenets.export.torch_code import Code

Array = npt.NDArray[Any]
Values = npt.NDArray[np.float32]


class LayerExport(ABC):
    """One layer. Methods raise `NoEqual` where the form cannot express it, before anything is written."""

    # The names of its blobs, in Caffe's order.
    blob_names: ClassVar[tuple[str, ...]] = ("weight", "bias")
    # Whether its top has a row for each thing that it finds, in an order that rounding may change.
    searches: ClassVar[bool] = False

    def __init__(self, step: Step) -> None:
        self.step = step
        self.param = step.param

    @classmethod
    def names(cls, param: Any, count: int) -> tuple[str, ...]:
        """The names of its `count` blobs."""
        return cls.blob_names[:count]

    @abstractmethod
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        """Add the layer's nodes; the names of its tops' values."""

    @abstractmethod
    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        """Expressions for its tops; one alone may be a tuple of all."""

    def draw(self, at: int, shape: Shape, rng: np.random.Generator) -> Array | None:
        """Values that bottom `at` may have where it is an input of the net; None for any."""
        return None

    def from_onnx(self, stored: Mapping[str, Values], notes: Mapping[str, str]) -> list[Values]:
        """Caffe's blobs from the initializers of ONNX. Raises `KeyError` for one that is missing."""
        return [stored[key] for key in self.step.owners]


@cache
def exporters() -> Mapping[str, type[LayerExport]]:
    """By Caffe's names of types."""
    return {
        one.__name__: one
        for declared in declared_in("caffenets.export.layers", "EXPORTS")
        for one in declared
    }
