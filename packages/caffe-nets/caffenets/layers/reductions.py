"""Layers that reduce: several bottoms to one (Eltwise), or axes (ArgMax, Reduction, MVN)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

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
