"""Local response normalization, across channels and within each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.torch_code import Code, number
from caffenets.layer import Layer, Shape
from caffenets.torch_later import Function, Tensor, functional, torch

# Bytes of a slice of the batch: what fits into a core's cache is several times as fast.
_SLICE_BYTES = 1 << 20


_LRN_WITHIN: Final = '''
def lrn_within_channels(x, size, alpha, beta):
    """x (1 + alpha mean(x^2)) ^ -beta; the mean is over `size` rows and columns around each place."""
    return x * (1 + alpha * F.avg_pool2d(x * x, size, 1, size // 2)) ** -beta
'''


class LRN(Layer):
    """x (k + alpha mean(x^2)) ^ -beta; the mean is over `local_size` channels, or as many rows and columns.

    Across channels the mean divides by `local_size` at the edges, too; within channels k is 1, as Caffe has it.
    Caffe: layers/lrn_layer.cpp.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.lrn_param
        self._within = param.norm_region == 1
        if len(bottoms[0]) != 4:
            raise self.refuse(
                f"needs a bottom of (num, channels, height, width), and has {bottoms[0]}: reshape it first"
            )
        if param.local_size % 2 == 0:
            raise self.refuse(f"has local_size {param.local_size}: use an odd number")
        return [bottoms[0]]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        param, bottom = self.param.lrn_param, bottoms[0]
        window = _mean_within if self._within else _sum_across
        alpha = param.alpha if self._within else param.alpha / param.local_size
        top: Tensor = _Normalized.apply(
            bottom.float(),
            window,
            param.local_size,
            1.0 if self._within else param.k,
            alpha,
            param.beta,
        )  # type: ignore[no-untyped-call]
        return [top.to(bottom.dtype)]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        param, x = self.param.lrn_param, bottoms[0]
        size, alpha, beta = int(param.local_size), float(param.alpha), float(param.beta)
        if not self._within:
            return [graph.add("LRN", x, size=size, alpha=alpha, beta=beta, bias=float(param.k))]
        squares = graph.add("Mul", x, x)
        mean = graph.add(
            "AveragePool", squares, kernel_shape=[size] * 2, pads=[size // 2] * 4, count_include_pad=1
        )  # fmt: skip
        scale = graph.add("Add", graph.add("Mul", mean, graph.constant(alpha)), graph.constant(1.0))
        return [graph.add("Mul", x, graph.add("Pow", scale, graph.constant(-beta)))]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        param = self.param.lrn_param
        alpha, beta = number(param.alpha), number(param.beta)
        if not self._within:
            size, k = param.local_size, number(param.k)
            return [
                f"F.local_response_norm({bottoms[0]}, {size}, alpha={alpha}, beta={beta}, k={k})"
            ]
        code.helper(_LRN_WITHIN)
        return [f"lrn_within_channels({bottoms[0]}, {param.local_size}, {alpha}, {beta})"]


class _Normalized(Function):
    """y = x s^-beta with s = k + alpha window(x^2), and the closed form of its gradient:

    dx = dy s^-beta - 2 alpha beta x window(dy y / s), where a window of places is the same seen from each of them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        bottom: Tensor,
        window: Callable[[Tensor, int], Tensor],
        size: int,
        k: float,
        alpha: float,
        beta: float,
    ) -> Tensor:
        top, scale = torch.empty_like(bottom), torch.empty_like(bottom)
        for x, y, s in _slices(bottom, top, scale):
            torch.mul(window(x * x, size), alpha, out=s).add_(k)
            torch.mul(x, _to_minus(s, beta), out=y)
        ctx.options = (window, size, alpha, beta)
        ctx.save_for_backward(bottom, top, scale)
        return top

    @staticmethod
    def backward(ctx: Any, *top_diffs: Tensor) -> Any:
        bottom, top, scale = ctx.saved_tensors
        window, size, alpha, beta = ctx.options
        bottom_diff = torch.empty_like(bottom)
        for x, y, s, dy, dx in _slices(bottom, top, scale, top_diffs[0], bottom_diff):
            through_scale = window((dy * y).div_(s), size).mul_(x)
            torch.mul(dy, _to_minus(s, beta), out=dx).sub_(through_scale, alpha=2 * alpha * beta)
        return bottom_diff, None, None, None, None, None


def _slices(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The batch in parts that fit into the cache of a CPU; whole on other devices."""
    first = tensors[0]
    if first.device.type != "cpu" or len(first) == 0:
        return iter([tensors])
    images = max(1, _SLICE_BYTES * len(first) // (4 * first.numel()))
    return zip(*(torch.split(tensor, images) for tensor in tensors), strict=True)


def _sum_across(x: Tensor, size: int) -> Tensor:
    """The sum over `size` channels around each."""
    total = x.clone(memory_format=torch.preserve_format)
    channels = x.shape[1]
    for away in range(1, min(size // 2, channels - 1) + 1):
        total[:, away:] += x[:, : channels - away]
        total[:, : channels - away] += x[:, away:]
    return total


def _mean_within(x: Tensor, size: int) -> Tensor:
    """The mean over `size` rows and columns around each place, with zeros beyond the edges."""
    return functional.avg_pool2d(x, size, 1, size // 2)


def _to_minus(scale: Tensor, beta: float) -> Tensor:
    """scale ^ -beta; square roots are several times as fast as a power."""
    if beta == 0.75:
        root = scale.rsqrt()
        return root.sqrt().mul_(root)
    if beta == 0.5:
        return scale.rsqrt()
    return scale.pow(-beta)


LAYERS: Final = (LRN,)
