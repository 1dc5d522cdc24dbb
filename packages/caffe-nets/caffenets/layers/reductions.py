"""Layers that reduce: several bottoms to one (Eltwise), or axes (ArgMax, Reduction, MVN)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.steps import Dims, NoEqual, constant
from caffenets.forms.torch_code import Code, listed, number
from caffenets.layer import Layer, Shape
from caffenets.layers.axes import canonical_axis, count
from caffenets.layers.bottoms import rows
from caffenets.layers.options import choice
from caffenets.torch_later import Function, Tensor, torch


class Eltwise(Layer):
    """The product, the weighted sum or the maximum of bottoms of one shape. Caffe: layers/eltwise_layer.cpp.

    PROD's gradient is the product of the other bottoms, or with `stable_prod_grad: false` top / bottom. Of two equal
    maxima the second bottom gets the gradient against the first, and otherwise the earlier one.
    """

    bottoms = (2, None)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.eltwise_param
        self._operation = choice(param, "operation")
        self._coefficients = list(param.coeff) or [1.0] * len(bottoms)
        self._divide = not param.stable_prod_grad
        if len(self._coefficients) != len(bottoms):
            raise self.refuse(
                f"has {len(bottoms)} bottoms and {len(param.coeff)} coeff: give each bottom one"
            )
        if param.coeff and self._operation == "PROD":
            raise self.refuse("has coeff, which PROD does not take: remove them")
        if len(set(bottoms)) > 1:
            raise self.refuse(f"has bottoms of unequal shapes: {', '.join(map(str, bottoms))}")
        return [bottoms[0]]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        first, *others = bottoms
        if self._operation == "PROD":
            if self._divide:
                return [_DividingProduct.apply(*bottoms)]  # type: ignore[no-untyped-call]
            top = first
            for other in others:
                top = top * other
        elif self._operation == "SUM":
            top = first if self._coefficients[0] == 1 else first * self._coefficients[0]
            for other, coefficient in zip(others, self._coefficients[1:], strict=True):
                top = torch.add(top, other, alpha=coefficient)
        else:
            second, *others = others
            top = torch.where(first > second, first, second)
            for other in others:
                top = torch.where(other > top, other, top)
        return [top]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        if self._operation == "MAX":
            return [graph.add("Max", *bottoms)]
        parts = [
            one if factor == 1 else graph.add("Mul", one, graph.constant(factor))
            for one, factor in zip(bottoms, self._coefficients, strict=True)
        ]
        top = parts[0]
        for part in parts[1:]:
            top = graph.add("Mul" if self._operation == "PROD" else "Add", top, part)
        return [top]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        if self._operation == "PROD":
            return [" * ".join(bottoms)]
        if self._operation == "MAX":
            top = bottoms[0]
            for other in bottoms[1:]:
                top = f"torch.maximum({top}, {other})"
            return [top]
        parts = [
            one if factor == 1 else f"{number(factor)} * {one}"
            for one, factor in zip(bottoms, self._coefficients, strict=True)
        ]
        return [" + ".join(parts)]


class _DividingProduct(Function):
    """A product whose gradient divides, and so is NaN where a bottom is 0, as Caffe's is."""

    @staticmethod
    def forward(ctx: Any, *bottoms: Tensor) -> Tensor:
        top = bottoms[0]
        for other in bottoms[1:]:
            top = top * other
        ctx.save_for_backward(top, *bottoms)
        return top

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        top, *bottoms = ctx.saved_tensors
        return tuple(top / bottom * gradients[0] for bottom in bottoms)


_ARG_MAX: Final = '''
def arg_max(x, axis, top_k):
    """The indices and values of the greatest along `axis`; of equal ones the greater index comes first, as in Caffe."""
    values, order = x.flip(axis).sort(dim=axis, descending=True, stable=True)
    return (x.shape[axis] - 1 - order.narrow(axis, 0, top_k)).float(), values.narrow(axis, 0, top_k)
'''


class ArgMax(Layer):
    """The indices, or values, of the `top_k` greatest of each item, or along `axis`.

    Of equal values the one with the greater index comes first. It has no gradient. Tops: with `axis` the bottom's shape
    with `top_k` there; without it (N, 1, top_k), or with `out_max_val` (N, 2, top_k) with indices and values.
    Caffe: layers/argmax_layer.cpp.
    """

    constant: ClassVar[Mapping[int, str]] = {0: "bottom"}

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.argmax_param
        (bottom,) = bottoms
        self._axis = canonical_axis(self, param.axis, bottom) if param.HasField("axis") else None
        self._values, self._top_k = param.out_max_val, param.top_k
        size = count(bottom, 1) if self._axis is None else bottom[self._axis]
        if not 1 <= self._top_k <= size:
            raise self.refuse(f"has top_k {self._top_k} of {size} values: use 1 to {size}")
        return [self._shape(bottom)]

    def _shape(self, bottom: Shape) -> Shape:
        if self._axis is None:
            ones = (1,) * (len(bottom) - 3)
            return (bottom[0], 2 if self._values else 1, self._top_k, *ones)
        return (*bottom[: self._axis], self._top_k, *bottom[self._axis + 1 :])

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        bottom = bottoms[0].detach()
        values = rows(bottom) if self._axis is None else bottom
        axis = 1 if self._axis is None else self._axis
        # Sorted from behind: a stable sort then leaves the greater index first among equals.
        found, order = values.flip(axis).sort(dim=axis, descending=True, stable=True)
        found = found.narrow(axis, 0, self._top_k)
        indices = (values.shape[axis] - 1 - order.narrow(axis, 0, self._top_k)).float()
        if self._axis is not None:
            return [found if self._values else indices]
        tops = torch.cat([indices, found.float()], 1) if self._values else indices
        return [tops.reshape(self._shape(tuple(bottom.shape)))]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        x, axis, size = bottoms[0], self._place, self._size()
        if self._axis is None:
            x = graph.add("Flatten", x)
        # From behind: TopK takes the smaller of equal ones' indices first, Caffe the greater.
        back = [graph.integers(-1), graph.integers(-(2**31)), graph.integers(axis)]
        turned = graph.add("Slice", x, *back, graph.integers(-1))
        given = [turned, graph.integers(self.param.argmax_param.top_k)]
        values, order = graph.add_several("TopK", given, 2, axis=axis)
        places = graph.add("Cast", graph.add("Sub", graph.integers(size - 1), order), to=1)
        wanted = self.param.argmax_param.out_max_val
        if self._axis is not None:
            return [values if wanted else places]
        both = graph.add("Concat", places, values, axis=1) if wanted else places
        return [graph.reshaped(both, self.step.tops[0])]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        code.helper(_ARG_MAX)
        x = bottoms[0] if self._axis is not None else f"{bottoms[0]}.flatten(1)"
        found = f"arg_max({x}, {self._place}, {self.param.argmax_param.top_k})"
        wanted = self.param.argmax_param.out_max_val
        if self._axis is not None:
            return [f"{found}[{int(wanted)}]"]
        both = f"torch.cat({found}, 1)" if wanted else f"{found}[0]"
        sizes = listed([-1 if size is None else size for size in self.step.tops[0]])
        return [f"{both}.reshape({sizes})"]

    def _size(self) -> int:
        bottom = self.step.bottoms[0]
        sizes: Dims = bottom[1:] if self._axis is None else (bottom[self._axis],)
        return int(np.prod(constant(sizes, "sizes")))

    @property
    def _place(self) -> int:
        return 1 if self._axis is None else self._axis


class Reduction(Layer):
    """`coeff` times the sum, sum of magnitudes, sum of squares or mean over all axes from `axis` on.

    Caffe: layers/reduction_layer.cpp.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.reduction_param
        self._axis = canonical_axis(self, param.axis, bottoms[0])
        self._operation, self._coefficient = choice(param, "operation"), param.coeff
        return [bottoms[0][: self._axis]]

    def loss_of_parts(self) -> str:
        if self._axis:
            return ""
        return "mean" if self._operation == "MEAN" else "sum"

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        bottom = bottoms[0].float().flatten(self._axis)
        if self._operation == "ASUM":
            bottom = bottom.abs()
        elif self._operation == "SUMSQ":
            bottom = bottom.square()
        top = bottom.mean(-1) if self._operation == "MEAN" else bottom.sum(-1)
        return [top if self._coefficient == 1 else top * self._coefficient]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        x, axes = bottoms[0], self._axes
        if self._operation == "SUM":
            top = graph.add("ReduceSum", x, graph.integers(*axes), keepdims=0)
        else:
            op = {"ASUM": "ReduceL1", "SUMSQ": "ReduceSumSquare", "MEAN": "ReduceMean"}[
                self._operation
            ]
            top = graph.add(op, x, axes=axes, keepdims=0)
        return [
            top
            if self._coefficient == 1
            else graph.add("Mul", top, graph.constant(self._coefficient))
        ]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        axes = tuple(self._axes)
        inside, call = {
            "SUM": ("{}", "sum"),
            "ASUM": ("{}.abs()", "sum"),
            "SUMSQ": ("{}.square()", "sum"),
            "MEAN": ("{}", "mean"),
        }[self._operation]
        top = f"{inside.format(bottoms[0])}.{call}({axes})"
        return [top if self._coefficient == 1 else f"{top} * {number(self._coefficient)}"]

    @property
    def _axes(self) -> list[int]:
        return list(range(self._axis, len(self.step.bottoms[0])))


class MVN(Layer):
    """Each channel of each item, or each item, less its mean, and over its deviation + `eps`.

    The top always has four axes. Caffe: layers/mvn_layer.cpp.
    """

    in_place = True

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.mvn_param
        (bottom,) = bottoms
        if not 1 <= len(bottom) <= 4:
            raise self.refuse(f"takes bottoms of 1 to 4 axes, not {len(bottom)}: reshape below it")
        self._kept = 1 if param.across_channels else 2
        self._normalize, self._epsilon = param.normalize_variance, param.eps
        return [(*bottom, *(1,) * (4 - len(bottom)))]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        bottom = bottoms[0].float()
        bottom = bottom.reshape(*bottom.shape, *(1,) * (4 - bottom.ndim))
        axes = tuple(range(self._kept, 4))
        centered = bottom - bottom.mean(axes, keepdim=True)
        if not self._normalize:
            return [centered]
        return [_OverDeviation.apply(centered, axes, self._epsilon)]  # type: ignore[no-untyped-call]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        param, x = self.param.mvn_param, bottoms[0]
        axes = self._axes()
        centered = graph.add("Sub", x, graph.add("ReduceMean", x, axes=axes))
        if not param.normalize_variance:
            return [centered]
        variance = graph.add("ReduceMean", graph.add("Mul", centered, centered), axes=axes)
        divisor = graph.add("Add", graph.add("Sqrt", variance), graph.constant(param.eps))
        return [graph.add("Div", centered, divisor)]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        param, x, axes = self.param.mvn_param, bottoms[0], tuple(self._axes())
        centered = f"({x} - {x}.mean({axes}, keepdim=True))"
        if not param.normalize_variance:
            return [centered]
        deviation = f"{x}.var({axes}, correction=0, keepdim=True).sqrt()"
        return [f"{centered} / ({deviation} + {number(param.eps)})"]

    def _axes(self) -> list[int]:
        if len(self.step.bottoms[0]) != 4:
            raise NoEqual("takes 4 axes only when it is exported")
        return list(range(self._kept, 4))


class _OverDeviation(Function):
    """centered / (deviation + eps).

    Caffe's gradient is (dy - y mean(y dy)) / (deviation + eps), less the mean: that of y only where eps is 0, since
    with eps its second term would grow by (deviation + eps) / deviation. The mean is taken off by the caller's graph.
    """

    @staticmethod
    def forward(ctx: Any, centered: Tensor, axes: tuple[int, ...], epsilon: float) -> Tensor:
        divisor = centered.square().mean(axes, keepdim=True).sqrt() + epsilon
        top = centered / divisor
        ctx.save_for_backward(top, divisor)
        ctx.axes = axes
        return top

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        top, divisor = ctx.saved_tensors
        (gradient,) = gradients
        scale = (top * gradient).mean(ctx.axes, keepdim=True)
        return (gradient - top * scale) / divisor, None, None


LAYERS: Final = (Eltwise, ArgMax, Reduction, MVN)
