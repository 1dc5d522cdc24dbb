"""Layers without bottoms that read no records: Input, Parameter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.torch_code import Code
from caffenets.layer import BlobSpec, Layer, Shape
from caffenets.torch_later import Tensor, torch


class Input(Layer):
    """Tops that the caller fills: `values`, one tensor a top, zeros until then. Caffe: layers/input_layer.cpp."""

    bottoms = (0, 0)
    tops = (1, None)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        shapes = [tuple(shape.dim) for shape in self.param.input_param.shape]
        tops = len(self.param.top)
        if len(shapes) not in (1, tops):
            raise self.refuse(f"has {len(shapes)} shapes and {tops} tops: give one, or one a top")
        shapes = shapes * tops if len(shapes) == 1 else shapes
        self._shapes = shapes
        return shapes

    @cached_property
    def values(self) -> list[Tensor]:
        """What the tops have; others may be put in place."""
        return [torch.zeros(shape) for shape in self._shapes]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return list(self.values)


class Parameter(Layer):
    """A top that is the layer's one blob. Caffe: include/caffe/layers/parameter_layer.hpp.

    With `iter_size` above 1 the gradients of its batches are added; Caffe's keeps the last one's only.
    """

    bottoms = (0, 0)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        shape = tuple(self.param.parameter_param.shape.dim)
        self.blobs = [BlobSpec(shape)]
        return [shape]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [blobs[0]]

    @classmethod
    def names(cls, param: Any, count: int) -> tuple[str, ...]:
        return ("value",)

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [graph.blob(0)]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return code.parameters()


LAYERS: Final = (Input, Parameter)
