"""Pooling and SPP, with Caffe's windows: rounded up, and clipped at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Final

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.steps import NoEqual, constant
from caffenets.forms.torch_code import Code, pair
from caffenets.layer import Layer, Shape
from caffenets.torch_later import Tensor, functional, torch

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over (height, width), and how many there are along each.

    Caffe: layers/pooling_layer.cpp, Reshape. A window reaches into the padding at the beginning, and at the end as far
    as `size + pad`; the average counts those places.
    """

    size: Pair
    kernel: Pair
    stride: Pair
    pad: Pair
    count: Pair
    ceil: bool = True

    @property
    def narrow(self) -> bool:
        """Whether the padding is at most half a window, as PyTorch wants it."""
        return all(2 * pad <= kernel for pad, kernel in zip(self.pad, self.kernel, strict=True))

    @property
    def empty(self) -> bool:
        """Whether a last window begins behind the end; Caffe allows it where there is no padding."""
        return any(
            (count - 1) * stride >= size + pad
            for count, stride, size, pad in zip(
                self.count, self.stride, self.size, self.pad, strict=True
            )
        )

    def largest(self, bottom: Tensor) -> tuple[Tensor, Tensor]:
        """The largest element of each window, and its index in height * width; the first one of equals."""
        if self.narrow:
            return functional.max_pool2d_with_indices(
                bottom, self.kernel, self.stride, self.pad, ceil_mode=self.ceil
            )
        padded = functional.pad(bottom, self._sides, value=float("-inf"))
        top, index = functional.max_pool2d_with_indices(
            padded, self.kernel, self.stride, ceil_mode=self.ceil
        )
        top, index = (x[:, :, : self.count[0], : self.count[1]] for x in (top, index))
        width = padded.shape[3]
        rows, columns = index // width - self.pad[0], index % width - self.pad[1]
        return top, rows * self.size[1] + columns

    def maximum(self, bottom: Tensor) -> Tensor:
        """The largest element of each window; the gradient goes to the first one of equals."""
        if not self.narrow:
            return self.largest(bottom)[0]
        return functional.max_pool2d(
            bottom, self.kernel, self.stride, self.pad, ceil_mode=self.ceil
        )

    def average(self, bottom: Tensor) -> Tensor:
        """The sum of each window over its places, padding among them."""
        pad = self.pad
        if not self.narrow:
            bottom, pad = functional.pad(bottom, self._sides), (0, 0)
        top = functional.avg_pool2d(bottom, self.kernel, self.stride, pad, ceil_mode=self.ceil)
        return top[:, :, : self.count[0], : self.count[1]]

    @property
    def _sides(self) -> list[int]:
        return [self.pad[1], self.pad[1], self.pad[0], self.pad[0]]

    @property
    def _end(self) -> Pair:
        """How far the last windows reach beyond the bottom, at least 0."""
        rows, columns = (
            max(
                0,
                (self.count[at] - 1) * self.stride[at]
                + self.kernel[at]
                - self.size[at]
                - self.pad[at],
            )
            for at in (0, 1)
        )
        return rows, columns

    def largest_nodes(self, graph: Graph, x: str, outputs: int = 1) -> list[str]:
        """MaxPool; with two outputs the indices, too."""
        return graph.add_several(
            "MaxPool", [x], outputs,
            kernel_shape=self.kernel, strides=self.stride, pads=[*self.pad, *self._end],
        )  # fmt: skip

    def average_nodes(self, graph: Graph, x: str) -> str:
        """The sum of each window over its places in the padded bottom; those behind that do not count."""
        begin, end, counted = self.pad, self._end, 1
        if any(more > pad for more, pad in zip(end, self.pad, strict=True)):
            if any(self.pad):
                x = graph.add("Pad", x, graph.integers(0, 0, *self.pad, 0, 0, *self.pad))
            begin = (0, 0)
            end = (max(0, end[0] - self.pad[0]), max(0, end[1] - self.pad[1]))
            counted = 0
        return graph.add(
            "AveragePool", x,
            kernel_shape=self.kernel, strides=self.stride, pads=[*begin, *end], count_include_pad=counted,
        )  # fmt: skip

    def expression(self, x: str, method: str, indices: bool = False) -> str:
        """The windows in PyTorch, which has Caffe's clipping where the padding is at most half a window."""
        call = "F.max_pool2d" if method == "MAX" else "F.avg_pool2d"
        given = f"{pair(self.kernel)}, {pair(self.stride)}"
        if self.narrow:
            floor = tuple(
                (self.size[at] + 2 * self.pad[at] - self.kernel[at]) // self.stride[at] + 1
                for at in (0, 1)
            )
            pad = f", {pair(self.pad)}" if any(self.pad) else ""
            more = "" if floor == self.count else ", ceil_mode=True"
            return f"{call}({x}, {given}{pad}{more}{', return_indices=True' if indices else ''})"
        if indices:
            raise NoEqual("has a second top with more padding than half a window")
        (top, left), (height, width) = self.pad, self.count
        if method == "MAX":
            sides = [left, self._end[1], top, self._end[0]]
            return f'F.max_pool2d(F.pad({x}, {sides}, value=float("-inf")), {given})[:, :, :{height}, :{width}]'
        return f"F.avg_pool2d(F.pad({x}, {self._sides}), {given}, ceil_mode=True)[:, :, :{height}, :{width}]"


def windows(
    layer: Layer, size: Pair, kernel: Pair, stride: Pair, pad: Pair, ceil: bool = True
) -> Windows:
    """Counts the windows. Raises `EngineError` where Caffe has none, or pads by a whole window."""
    if min(*kernel, *stride) < 1:
        raise layer.refuse(f"has kernel {kernel} and stride {stride}: use 1 or more")
    if any(p and p >= k for p, k in zip(pad, kernel, strict=True)):
        raise layer.refuse(f"pads by {pad} with a kernel of {kernel}: pad by less than the kernel")
    counts = []
    for s, k, step, p in zip(size, kernel, stride, pad, strict=True):
        room = s + 2 * p - k
        count = (-(-room // step) if ceil else room // step) + 1
        if any(pad) and (count - 1) * step >= s + p:
            count -= 1
        counts.append(count)
    if min(counts) < 1:
        raise layer.refuse(
            f"has a kernel of {kernel}, larger than its padded bottom {size}: use a smaller kernel"
        )
    return Windows(size, kernel, stride, pad, (counts[0], counts[1]), ceil)


def _method(layer: Layer, param: Any) -> str:
    """MAX or AVE."""
    field = _enum_name(param, "pool")
    if field == "STOCHASTIC":
        raise layer.refuse("pools STOCHASTIC, which Caffe has for GPUs only: use MAX or AVE")
    return field


def _enum_name(param: Any, name: str) -> str:
    """The name of an enum field's value, such as MAX."""
    kind = param.DESCRIPTOR.fields_by_name[name].enum_type
    return str(kind.values_by_number[getattr(param, name)].name)


def _image(layer: Layer, bottom: Shape) -> Pair:
    if len(bottom) != 4:
        raise layer.refuse(
            f"needs a bottom of (num, channels, height, width), and has {bottom}: reshape it first"
        )
    return bottom[2], bottom[3]


class Pooling(Layer):
    """MAX or AVE over windows; a second top of MAX has the index of each largest element.

    Caffe: layers/pooling_layer.cpp. Refused: STOCHASTIC, and empty windows, for which Caffe divides by 0 or writes a
    gradient outside of the blob.
    """

    tops: ClassVar[tuple[int, int | None]] = (1, 2)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param, size = self.param.pooling_param, _image(self, bottoms[0])
        self._method = _method(self, param)
        kernel = self._kernel(size)
        stride, pad = self._pair("stride", param.stride), self._pair("pad", param.pad)
        if param.global_pooling and (max(pad) > 0 or max(stride) > 1):
            raise self.refuse("has global_pooling, which takes no pad and no stride: remove them")
        rounding = _enum_name(param, "round_mode")
        self._windows = windows(self, size, kernel, stride, pad, ceil=rounding == "CEIL")
        if self._windows.empty:
            raise self.refuse(
                "has windows that begin behind the end of its bottom, which give NaN or -FLT_MAX in Caffe: "
                "use round_mode: FLOOR or a larger kernel"
            )
        if len(self.param.top) > 1 and self._method != "MAX":
            raise self.refuse(f"has a second top, which {self._method} does not fill: remove it")
        return [(*bottoms[0][:2], *self._windows.count)] * len(self.param.top)

    def _kernel(self, size: Pair) -> Pair:
        param = self.param.pooling_param
        pair = param.HasField("kernel_h") or param.HasField("kernel_w")
        if param.global_pooling:
            if pair or param.HasField("kernel_size"):
                raise self.refuse("has global_pooling and a kernel: remove one")
            return size
        if pair and param.HasField("kernel_size"):
            raise self.refuse("has kernel_size and kernel_h or kernel_w: use one form")
        return self._pair("kernel", param.kernel_size)

    def _pair(self, name: str, both: int) -> Pair:
        """(height, width) of an option: NAME_h and NAME_w, or one value for both."""
        param = self.param.pooling_param
        height, width = param.HasField(f"{name}_h"), param.HasField(f"{name}_w")
        if not (height or width):
            return both, both
        if not (height and width) or (name != "kernel" and param.HasField(name)):
            raise self.refuse(f"has {name}_h or {name}_w: give both of them, and not {name}")
        return getattr(param, f"{name}_h"), getattr(param, f"{name}_w")

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        if self._method == "AVE":
            return [self._windows.average(bottoms[0])]
        if len(self.param.top) == 1:
            return [self._windows.maximum(bottoms[0])]
        top, index = self._windows.largest(bottoms[0])
        return [top, index.to(torch.float32)]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        constant(self.step.bottoms[0][2:], "spatial sizes")
        if self._method == "AVE":
            return [self._windows.average_nodes(graph, bottoms[0])]
        if len(self.param.top) == 1:
            return self._windows.largest_nodes(graph, bottoms[0])
        # counted over all records and channels
        top, places = self._windows.largest_nodes(graph, bottoms[0], 2)
        within = graph.add("Mod", places, graph.integers(prod(self._windows.size)))
        return [top, graph.add("Cast", within, to=1)]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        constant(self.step.bottoms[0][2:], "spatial sizes")
        return [self._windows.expression(bottoms[0], self._method, len(self.param.top) > 1)]


class SPP(Layer):
    """Pools over 1, 2 x 2, 4 x 4 ... windows; the top is (num, all of them). Caffe: layers/spp_layer.cpp."""

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param, size = self.param.spp_param, _image(self, bottoms[0])
        self._method = _method(self, param)
        if param.pyramid_height < 1:
            raise self.refuse("has pyramid_height 0: use 1 or more")
        self._levels = [self._level(size, 1 << level) for level in range(param.pyramid_height)]
        if len(self._levels) == 1:
            return [(*bottoms[0][:2], *self._levels[0].count)]
        places = sum(level.count[0] * level.count[1] for level in self._levels)
        return [(bottoms[0][0], bottoms[0][1] * places)]

    def _level(self, size: Pair, bins: int) -> Windows:
        kernel = (-(-size[0] // bins), -(-size[1] // bins))
        pad = (
            (kernel[0] * bins - size[0] + 1) // 2,
            (kernel[1] * bins - size[1] + 1) // 2,
        )
        return windows(self, size, kernel, kernel, pad)

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        tops = [
            level.maximum(bottoms[0]) if self._method == "MAX" else level.average(bottoms[0])
            for level in self._levels
        ]
        if len(tops) == 1:
            return tops
        return [torch.cat([top.flatten(1) for top in tops], 1)]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        constant(self.step.bottoms[0][2:], "spatial sizes")
        tops = [
            level.largest_nodes(graph, bottoms[0])[0]
            if self._method == "MAX"
            else level.average_nodes(graph, bottoms[0])
            for level in self._levels
        ]
        if len(tops) == 1:
            return tops
        return [graph.add("Concat", *(graph.add("Flatten", top) for top in tops), axis=1)]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        constant(self.step.bottoms[0][2:], "spatial sizes")
        tops = [level.expression(bottoms[0], self._method) for level in self._levels]
        if len(tops) == 1:
            return tops
        return [f"torch.cat([{', '.join(f'{top}.flatten(1)' for top in tops)}], 1)"]


LAYERS: Final = (Pooling, SPP)
