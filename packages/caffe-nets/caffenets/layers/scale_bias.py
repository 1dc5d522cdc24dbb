"""Scale and Bias: a product and a sum along some axes, with a learned blob or a second bottom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.torch_code import Code
from caffenets.layer import BlobSpec, Layer, Shape
from caffenets.layers.axes import canonical_axis
from caffenets.torch_later import Tensor, torch


class _AlongAxes(Layer):
    """A layer whose operand covers the axes of its bottom from `axis` on."""

    in_place = True

    bottoms: ClassVar[tuple[int, int | None]] = (1, 2)

    def operand_shape(self, param: Any, bottoms: Sequence[Shape]) -> Shape:
        """Sets how the operand is stretched over the bottom, and gives its shape."""
        bottom = bottoms[0]
        if len(bottoms) == 1:
            axis = canonical_axis(self, param.axis, bottom)
            axes = len(bottom) - axis if param.num_axes == -1 else param.num_axes
            if axes < 0:
                raise self.refuse(f"has num_axes {axes}: use 0 or more, or -1 for all from axis on")
            operand = bottom[axis : axis + axes]
        else:
            operand, axes = bottoms[1], len(bottoms[1])
            axis = canonical_axis(self, param.axis, bottom) if operand else 0
        if axis + axes > len(bottom) or bottom[axis : axis + axes] != operand:
            raise self.refuse(
                f"has an operand of shape {operand or axes} from axis {axis} on, which does not fit "
                f"the bottom's shape {bottom}: change axis or num_axes"
            )
        # Axes behind the operand's; its own are not kept: a Filter below may change the first.
        self._behind = (1,) * (len(bottom) - axis - axes) if operand else ()
        return operand

    def stretched(self, operand: Tensor) -> Tensor:
        """`operand` in the shape that broadcasts over the bottom."""
        return operand.reshape((*operand.shape, *self._behind))

    def operand_value(self, graph: Graph, bottoms: Sequence[str], index: int) -> str:
        """The second bottom, or blob `index`, so that it broadcasts."""
        behind = len(self._behind)
        if len(bottoms) == 1 or index:
            shape = self.step.blobs[0 if len(bottoms) > 1 else index]
            return graph.blob(0 if len(bottoms) > 1 else index, (*shape, *(1,) * behind))
        if not behind:
            return bottoms[1]
        axes = range(len(self.step.bottoms[1]), len(self.step.bottoms[1]) + behind)
        return graph.add("Unsqueeze", bottoms[1], graph.integers(*axes))

    def stretched_source(self, operand: str) -> str:
        """The expression of the operand that broadcasts."""
        behind = len(self._behind)
        return f"{operand}[(..., {', '.join(['None'] * behind)})]" if behind else operand


class Scale(_AlongAxes):
    """`top = bottom * scale + bias`; scale is a blob or the second bottom. Caffe: layers/scale_layer.cpp."""

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.scale_param
        shape = self.operand_shape(param, bottoms)
        self._learned = len(bottoms) == 1
        self.blobs = []
        if self._learned:
            filler = param.filler
            if not param.HasField("filler"):
                filler = type(param.filler)(type="constant", value=1)
            self.blobs.append(BlobSpec(shape, filler))
        if param.bias_term:
            self.blobs.append(BlobSpec(shape, param.bias_filler))
        return [bottoms[0]]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        scale = self.stretched(blobs[0] if self._learned else bottoms[1])
        if self.param.scale_param.bias_term:
            top = torch.addcmul(self.stretched(blobs[-1]), bottoms[0], scale)
        else:
            top = bottoms[0] * scale
        return [top.to(bottoms[0].dtype)]

    @classmethod
    def names(cls, param: Any, count: int) -> tuple[str, ...]:
        return ("bias",) if len(param.bottom) > 1 else cls.blob_names[:count]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        param = self.param.scale_param
        top = graph.add("Mul", bottoms[0], self.operand_value(graph, bottoms, 0))
        if param.bias_term:
            top = graph.add("Add", top, self.operand_value(graph, bottoms, 1))
        return [top]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        operands = [*bottoms[1:], *(code.parameters() if self.step.blobs else ())]
        scale, *bias = (self.stretched_source(one) for one in operands)
        return [" + ".join([f"{bottoms[0]} * {scale}", *bias])]


class Bias(_AlongAxes):
    """`top = bottom + bias`; bias is a blob or the second bottom. Caffe: layers/bias_layer.cpp."""

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.bias_param
        shape = self.operand_shape(param, bottoms)
        self.blobs = [BlobSpec(shape, param.filler)] if len(bottoms) == 1 else []
        return [bottoms[0]]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        top = bottoms[0] + self.stretched(blobs[0] if blobs else bottoms[1])
        return [top.to(bottoms[0].dtype)]

    @classmethod
    def names(cls, param: Any, count: int) -> tuple[str, ...]:
        return ("bias",)[:count]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        operand = self.operand_value(graph, bottoms, 0)
        return [graph.add("Add", bottoms[0], operand)]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        operand = code.parameters()[0] if self.step.blobs else bottoms[1]
        return [f"{bottoms[0]} + {self.stretched_source(operand)}"]


LAYERS: Final = (Scale, Bias)
