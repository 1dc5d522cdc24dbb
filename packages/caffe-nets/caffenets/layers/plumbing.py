"""Split and Silence: tops without a computation, and bottoms that nobody uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.torch_code import Code
from caffenets.layer import Layer, Shape
from caffenets.torch_later import Tensor


class Split(Layer):
    """Each top is the bottom; their gradients are added. Caffe: layers/split_layer.cpp."""

    tops: ClassVar[tuple[int, int | None]] = (1, None)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        return [bottoms[0]] * len(self.param.top)

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [bottoms[0]] * len(self.param.top)

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [bottoms[0]] * len(self.step.tops)

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [bottoms[0]] * len(self.step.tops)


class Silence(Layer):
    """Takes blobs so that they are no outputs of the net. Caffe: layers/silence_layer.cpp."""

    bottoms: ClassVar[tuple[int, int | None]] = (1, None)
    tops: ClassVar[tuple[int, int | None]] = (0, 0)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        return []

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return []


LAYERS: Final = (Split, Silence)
