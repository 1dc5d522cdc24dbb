"""Pooling and SPP with Caffe's windows: as many as the engine counts, clipped at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from caffenets.export.layer_export import LayerExport
from caffenets.export.onnx_graph import Graph
from caffenets.export.steps import NoEqual, Shape, constant, option, per_axis
from caffenets.export.torch_code import Code, pair


@dataclass(frozen=True, slots=True)
class _Windows:
    """Windows over (height, width), and how many there are along each."""

    size: Shape
    kernel: Shape
    stride: Shape
    pad: Shape
    count: Shape

    @property
    def end(self) -> Shape:
        """How far the last windows reach beyond the bottom, at least 0."""
        return tuple(
            max(0, (count - 1) * stride + kernel - size - pad)
            for size, kernel, stride, pad, count in self._each()
        )

    def _each(self) -> list[tuple[int, int, int, int, int]]:
        return list(zip(self.size, self.kernel, self.stride, self.pad, self.count, strict=True))

    def largest(self, graph: Graph, x: str, outputs: int = 1) -> list[str]:
        """MaxPool; with two outputs the indices, too."""
        return graph.add_several(
            "MaxPool", [x], outputs,
            kernel_shape=self.kernel, strides=self.stride, pads=[*self.pad, *self.end],
        )  # fmt: skip

    def average(self, graph: Graph, x: str) -> str:
        """The sum of each window over its places in the padded bottom; those behind that do not count."""
        begin, end, counted = self.pad, self.end, 1
        if any(more > pad for more, pad in zip(end, self.pad, strict=True)):
            if any(self.pad):
                x = graph.add("Pad", x, graph.integers(0, 0, *self.pad, 0, 0, *self.pad))
            begin = (0, 0)
            end = tuple(max(0, more - pad) for more, pad in zip(end, self.pad, strict=True))
            counted = 0
        return graph.add(
            "AveragePool", x,
            kernel_shape=self.kernel, strides=self.stride, pads=[*begin, *end], count_include_pad=counted,
        )  # fmt: skip

    def expression(self, x: str, method: str, indices: bool = False) -> str:
        """The windows in PyTorch, which has Caffe's clipping where the padding is at most half a window."""
        call = "F.max_pool2d" if method == "MAX" else "F.avg_pool2d"
        given = f"{pair(self.kernel)}, {pair(self.stride)}"
        narrow = all(2 * pad <= kernel for pad, kernel in zip(self.pad, self.kernel, strict=True))
        for ceil in (False, True):
            if narrow and self._counted(ceil) == self.count:
                pad = f", {pair(self.pad)}" if any(self.pad) else ""
                more = ", ceil_mode=True" if ceil else ""
                return (
                    f"{call}({x}, {given}{pad}{more}{', return_indices=True' if indices else ''})"
                )
        if indices:
            raise NoEqual("has a second top with more padding than half a window")
        (top, left), (height, width) = self.pad, self.count
        if method == "MAX":
            sides = [left, self.end[1], top, self.end[0]]
            return f'F.max_pool2d(F.pad({x}, {sides}, value=float("-inf")), {given})[:, :, :{height}, :{width}]'
        sides = [left, left, top, top]
        return (
            f"F.avg_pool2d(F.pad({x}, {sides}), {given}, ceil_mode=True)[:, :, :{height}, :{width}]"
        )

    def _counted(self, ceil: bool) -> Shape:
        """The windows that PyTorch counts."""
        counts = []
        for size, kernel, stride, pad, _ in self._each():
            room = size + 2 * pad - kernel
            count = (-(-room // stride) if ceil else room // stride) + 1
            if ceil and (count - 1) * stride >= size + pad:
                count -= 1
            counts.append(count)
        return tuple(counts)


class Pooling(LayerExport):
    def _windows(self) -> _Windows:
        param, step = self.param.pooling_param, self.step
        size, count = (constant(d[2:], "spatial sizes") for d in (step.bottoms[0], step.tops[0]))
        kernel = size if param.global_pooling else per_axis(param, "kernel_size", "kernel", 2, 1)
        stride = per_axis(param, "stride", "stride", 2, 1)
        return _Windows(size, kernel, stride, per_axis(param, "pad", "pad", 2, 0), count)

    def _method(self) -> str:
        method = option(self.param.pooling_param, "pool")
        if method == "STOCHASTIC":
            raise NoEqual("pools STOCHASTIC, which draws its windows: use MAX or AVE")
        return method

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        windows = self._windows()
        if self._method() == "AVE":
            return [windows.average(graph, bottoms[0])]
        if len(self.step.tops) == 1:
            return windows.largest(graph, bottoms[0])
        top, places = windows.largest(graph, bottoms[0], 2)  # counted over all records and channels
        within = graph.add("Mod", places, graph.integers(prod(windows.size)))
        return [top, graph.add("Cast", within, to=1)]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        several = len(self.step.tops) > 1
        return [self._windows().expression(bottoms[0], self._method(), several)]


class SPP(LayerExport):
    def _levels(self) -> list[_Windows]:
        size = constant(self.step.bottoms[0][2:], "spatial sizes")
        levels = []
        for level in range(self.param.spp_param.pyramid_height):
            bins = 1 << level
            kernel = tuple(-(-one // bins) for one in size)
            pad = tuple((k * bins - one + 1) // 2 for k, one in zip(kernel, size, strict=True))
            count = tuple(
                min(-(-(one + 2 * p - k) // k) + 1, -(-(one + p) // k))
                if p
                else -(-(one - k) // k) + 1
                for one, k, p in zip(size, kernel, pad, strict=True)
            )
            levels.append(_Windows(size, kernel, kernel, pad, count))
        return levels

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        largest = option(self.param.spp_param, "pool") == "MAX"
        tops = [
            level.largest(graph, bottoms[0])[0] if largest else level.average(graph, bottoms[0])
            for level in self._levels()
        ]
        if len(tops) == 1:
            return tops
        return [graph.add("Concat", *(graph.add("Flatten", top) for top in tops), axis=1)]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        method = option(self.param.spp_param, "pool")
        tops = [level.expression(bottoms[0], method) for level in self._levels()]
        if len(tops) == 1:
            return tops
        return [f"torch.cat([{', '.join(f'{top}.flatten(1)' for top in tops)}], 1)"]


EXPORTS: Final = (Pooling, SPP)
