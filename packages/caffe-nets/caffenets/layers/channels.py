"""Layers that reorder axes and channels, scale or normalise these: Permute, Transpose, Reverse, ShuffleChannel, Reorg,
Axpy, Normalize.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Final

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.steps import Dims, constant
from caffenets.forms.torch_code import Code, listed, number
from caffenets.layer import BlobSpec, Layer, Shape
from caffenets.layers.axes import canonical_axis
from caffenets.layers.bottoms import wide
from caffenets.torch_later import Tensor


class Permute(Layer):
    """The axes in another order; those that `order` does not name follow in theirs. SSD's layers/permute_layer.cpp."""

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        axes, order = len(bottoms[0]), list(self.param.permute_param.order)
        if len(set(order)) != len(order) or any(axis >= axes for axis in order):
            raise self.refuse(
                f"has the order {order}: name each of its {axes} axes, 0 to {axes - 1}, at most once"
            )
        self._order = [*order, *(axis for axis in range(axes) if axis not in order)]
        return [tuple(bottoms[0][axis] for axis in self._order)]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [bottoms[0].permute(self._order)]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [graph.add("Transpose", bottoms[0], perm=self._order)]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [f"{bottoms[0]}.permute({listed(self._order)})"]


class Transpose(Permute):
    """The axes in the order of `dim`, which names each. layers/transpose_layer.cpp of the Caffes for text."""

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        axes, self._order = len(bottoms[0]), list(self.param.transpose_param.dim)
        if sorted(self._order) != list(range(axes)):
            raise self.refuse(
                f"has the dim {self._order}: name each of its {axes} axes, 0 to {axes - 1}, once"
            )
        return [tuple(bottoms[0][axis] for axis in self._order)]


class Reverse(Layer):
    """The values along `axis` in the opposite order, for a recurrent layer that reads the end first.

    layers/reverse_layer.cpp of the Caffes for text.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        self._axis = canonical_axis(self, self.param.reverse_param.axis, bottoms[0])
        return [bottoms[0]]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [bottoms[0].flip(self._axis)]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        ends = (graph.integers(one) for one in (-1, -(2**62), self._axis, -1))
        return [graph.add("Slice", bottoms[0], *ends)]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [f"{bottoms[0]}.flip({self._axis})"]


class Reorg(Layer):
    """Channels in place of height and width, each less by `stride`; with `reverse` the opposite.

    As in Darknet (reorg_cpu), the first takes its bottom in memory for one of fewer channels and larger height and
    width before it moves values. Redmon and Farhadi 2016, arXiv:1612.08242; layers/reorg_layer.cpp of the Caffes with
    YOLO's layers.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        stride, bottom = self.param.reorg_param.stride, bottoms[0]
        if len(bottom) != 4 or stride < 1 or bottom[1] % stride**2:
            raise self.refuse(
                f"has stride {stride} for a bottom of {bottom}: it needs (num, channels, height, width), and channels "
                "that the square of stride divides"
            )
        num, channels, height, width = bottom
        self._stride, self._reverse = stride, self.param.reorg_param.reverse
        if self._reverse:
            return [(num, channels // stride**2, height * stride, width * stride)]
        if height % stride or width % stride:
            raise self.refuse(
                f"has stride {stride}, which does not divide {height} x {width}: use another"
            )
        return [(num, channels * stride**2, height // stride, width // stride)]

    def _steps(
        self, bottom: Sequence[Any], top: Sequence[Any]
    ) -> tuple[list[Any], list[int], list[Any]]:
        """The shape to move axes in, their order then, and the shape of the top."""
        (num, channels, height, width), stride = bottom, self._stride
        if self._reverse:
            return [num, stride, stride, top[1], height, width], [0, 3, 4, 1, 5, 2], list(top)
        shape = [num, channels // stride**2, height, stride, width, stride]
        return shape, [0, 3, 5, 1, 2, 4], list(top)

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        num, channels, height, width = bottoms[0].shape
        less = self._stride if self._reverse else 1 / self._stride
        top = [num, round(channels / less**2), round(height * less), round(width * less)]
        shape, order, top = self._steps([num, channels, height, width], top)
        return [bottoms[0].reshape(shape).permute(order).reshape(top)]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        sizes = self.step.bottoms[0][:1] + constant(self.step.bottoms[0][1:], "sizes")
        shape, order, top = self._steps(sizes, self.step.tops[0])
        turned = graph.add("Transpose", graph.reshaped(bottoms[0], tuple(shape)), perm=order)
        return [graph.reshaped(turned, tuple(top))]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        sizes = (-1, *constant(self.step.bottoms[0][1:], "sizes"))
        shape, order, top = self._steps(sizes, (-1, *self.step.tops[0][1:]))
        return [
            f"{bottoms[0]}.reshape({listed(shape)}).permute({listed(order)}).reshape({listed(top)})"
        ]


class ShuffleChannel(Layer):
    """Channel i of group g becomes channel g of group i.

    Zhang et al. 2017, arXiv:1707.01083; layers/shuffle_channel_layer.cpp of ShuffleNet's Caffe.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        group = self.param.shuffle_channel_param.group
        if len(bottoms[0]) < 2 or group < 1 or bottoms[0][1] % group:
            raise self.refuse(
                f"has group {group} for a bottom of {bottoms[0]}: use a divisor of its channels"
            )
        self._group = group
        return [bottoms[0]]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        groups = bottoms[0].unflatten(1, (self._group, -1))
        return [groups.transpose(1, 2).flatten(1, 2)]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        top = self.step.tops[0]
        group, channels = (
            self._group,
            constant(top[1:2], "channels"),
        )
        apart: Dims = (top[0], group, channels[0] // group, *top[2:])
        order = [0, 2, 1, *range(3, len(apart))]
        turned = graph.add("Transpose", graph.reshaped(bottoms[0], apart), perm=order)
        return [graph.reshaped(turned, top)]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [f"{bottoms[0]}.unflatten(1, ({self._group}, -1)).transpose(1, 2).flatten(1, 2)"]


class Axpy(Layer):
    """a x + y, where a has one value for each channel.

    Hu et al. 2017, arXiv:1709.01507; SENet's layers/axpy_layer.cpp.
    """

    bottoms: ClassVar[tuple[int, int | None]] = (3, 3)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        scale, first, second = bottoms
        if first != second or len(first) < 2 or scale[:2] != first[:2] or prod(scale[2:]) != 1:
            raise self.refuse(
                f"has bottoms of {scale}, {first} and {second}: the first needs one value for each channel, the others "
                "one shape"
            )
        return [first]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        scale, first, second = bottoms
        return [scale.reshape(*scale.shape[:2], *[1] * (first.dim() - 2)) * first + second]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        scale, x, y = bottoms
        behind = len(self.step.tops[0]) - 2
        shape = graph.integers(0, 0, *[1] * behind)
        return [graph.add("Add", graph.add("Mul", graph.add("Reshape", scale, shape), x), y)]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        scale, x, y = bottoms
        ones = ", 1" * (len(self.step.tops[0]) - 2)
        return [f"{scale}.reshape(*{scale}.shape[:2]{ones}) * {x} + {y}"]


class Normalize(Layer):
    """x over its norm across channels, or across all of an image, times a learned scale.

    Liu et al. 2015, arXiv:1506.04579; SSD's layers/normalize_layer.cpp.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.norm_param
        if len(bottoms[0]) < 2:
            raise self.refuse(
                f"needs a bottom with 2 axes or more, and has {bottoms[0]}: reshape it first"
            )
        filler = param.scale_filler
        if not param.HasField("scale_filler"):
            filler = type(filler)(type="constant", value=1.0)
        self.blobs = [BlobSpec(() if param.channel_shared else (bottoms[0][1],), filler)]
        return [bottoms[0]]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        param, bottom = self.param.norm_param, wide(bottoms[0])
        axes = list(range(1, bottom.dim())) if param.across_spatial else [1]
        norm = (bottom.square().sum(axes, keepdim=True) + param.eps).sqrt()
        scale = blobs[0]
        if scale.dim():
            scale = scale.reshape(1, -1, *[1] * (bottom.dim() - 2))
        return [bottom / norm * scale]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        x, param = bottoms[0], self.param.norm_param
        axes = graph.integers(*self._axes())
        total = graph.add("ReduceSum", graph.add("Mul", x, x), axes)
        norm = graph.add("Sqrt", graph.add("Add", total, graph.constant(param.eps)))
        shape = self.step.blobs[0]
        behind = (1,) * (len(self.step.bottoms[0]) - 2) if shape else ()
        return [graph.add("Mul", graph.add("Div", x, norm), graph.blob(0, (*shape, *behind)))]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        (scale,) = code.parameters()
        x, axes = bottoms[0], tuple(self._axes())
        norm = (
            f"({x}.square().sum({axes}, keepdim=True) + {number(self.param.norm_param.eps)}).sqrt()"
        )
        if self.step.blobs[0]:
            scale = f"{scale}.reshape(-1{', 1' * (len(self.step.bottoms[0]) - 2)})"
        return [f"{x} / {norm} * {scale}"]

    def _axes(self) -> list[int]:
        whole = self.param.norm_param.across_spatial
        return list(range(1, len(self.step.bottoms[0]))) if whole else [1]


LAYERS: Final = (Permute, Transpose, Reverse, ShuffleChannel, Reorg, Axpy, Normalize)
