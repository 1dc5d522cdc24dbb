"""Scale and Bias: a product and a sum along some axes, with a learned blob or a second bottom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

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


LAYERS: Final = (Scale, Bias)
