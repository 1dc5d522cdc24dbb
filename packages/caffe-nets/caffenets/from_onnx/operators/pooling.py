"""Pooling over windows, over all places, and reductions: Pooling and Reduction.

Caffe rounds the number of windows up and pads both sides alike; its average counts the padding. Where no option makes
it ONNX's, windows too many are cut off by Slice, and averages are corrected by Scale.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Final

import numpy as np

from caffenets.forms.steps import Shape
from caffenets.from_onnx.making import Blob, NodeImport, NoLayer
from caffenets.from_onnx.operators.convolution import Pads, pads_of, per_axis, strides_of

_MOST_CUT: Final = 16  # windows before the first that is wanted


def _flat(x: Blob, node: NodeImport) -> Blob:
    """(batch, channels, length) with a height of 1: Caffe pools over height and width."""
    if len(x.shape) == 3:
        return node.reshaped(x, (*x.shape[:2], 1, x.shape[2]))
    if len(x.shape) != 4:
        raise NoLayer(f"pools an input of {len(x.shape)} axes: Caffe pools over height and width")
    return x


def _pool(method: str) -> Callable[[NodeImport], list[Blob]]:
    def operator(node: NodeImport) -> list[Blob]:
        given = node.blob(0)
        axes = len(given.shape) - 2
        x = _flat(given, node)
        fill = (1,) * (2 - axes)
        kernel = (*fill, *node.option("kernel_shape", ()))
        strides = (*fill, *strides_of(node, "strides", axes))
        if len(kernel) != 2 or min(kernel) < 1:
            raise NoLayer(f"has the kernel {list(kernel)} for {axes} axes: use 1 or more for each")
        if max(strides_of(node, "dilations", axes)) > 1:
            raise NoLayer("has dilations, which Caffe's pooling has not: pool without them")
        if len(node.node.outputs) > 1 and node.node.outputs[1]:
            raise NoLayer("gives indices in ONNX's order: use its values only")
        own = pads_of(node, given.shape[2:], kernel[2 - axes :], strides[2 - axes :])
        pads = [(0, 0)] * (2 - axes) + own
        ceil = bool(node.option("ceil_mode", 0))
        wanted = _counts(x.shape[2:], kernel, strides, pads, ceil, ceil)
        wide = any(p >= k for k, pair in zip(kernel, pads, strict=True) for p in pair)
        if min(wanted) < 1 or wide:
            raise NoLayer("has windows of padding alone, or none: use a kernel that fits")
        made, pad = _windows(node, method, x, kernel, strides, pads, wanted)
        if method == "AVE":
            made = _corrected(node, x.shape[2:], made, kernel, strides, pads, pad)
        return [node.reshaped(made, (*made.shape[:2], *made.shape[4 - axes :]))]

    return operator


def _counts(
    sizes: Shape, kernel: Shape, strides: Shape, pads: Pads, ceil: bool, clips: bool
) -> Shape:
    """How many windows there are along each axis; `clips`: none that begins behind the last place."""
    found = []
    for size, k, step, (begin, end) in zip(sizes, kernel, strides, pads, strict=True):
        room = size + begin + end - k
        count = (-(-room // step) if ceil else room // step) + 1
        found.append(count - 1 if clips and (count - 1) * step >= size + begin else count)
    return tuple(found)


def _windows(
    node: NodeImport, method: str, x: Blob, kernel: Shape, strides: Shape, pads: Pads, wanted: Shape
) -> tuple[Blob, Shape]:
    """The windows that are wanted, and Caffe's pad."""
    sizes = x.shape[2:]
    steps = [
        range(0, k - begin, step)[: max(0, end - begin) // step + 2][:_MOST_CUT]
        for k, step, (begin, end) in zip(kernel, strides, pads, strict=True)
    ]
    exact: list[tuple[str, Shape, Shape, Shape]] = []
    cut: list[tuple[str, Shape, Shape, Shape]] = []
    for more in product(*steps):
        pad = tuple(begin + by for (begin, _), by in zip(pads, more, strict=True))
        left = tuple(by // step for by, step in zip(more, strides, strict=True))
        for mode in ("CEIL", "FLOOR"):
            both = [(p, p) for p in pad]
            counts = _counts(sizes, kernel, strides, both, mode == "CEIL", any(pad))
            starts = [(n - 1) * step - p for n, step, p in zip(counts, strides, pad, strict=True)]
            enough = all(n - by >= w for n, by, w in zip(counts, left, wanted, strict=True))
            if enough and all(at < size for at, size in zip(starts, sizes, strict=True)):
                (exact if counts == wanted else cut).append((mode, pad, left, counts))
    if not exact and not cut:
        raise NoLayer(
            f"pads by {pads} with a kernel of {list(kernel)}, and Caffe's pooling pads both sides alike, by less than "
            "the kernel: pad before it, or both sides alike"
        )
    mode, pad, left, counts = (exact or cut)[0]
    named = per_axis("kernel_size", "kernel", kernel)
    named |= per_axis("stride", "stride", strides, 1) | per_axis("pad", "pad", pad, 0)
    param = {key: one[0] if isinstance(one, list) else one for key, one in named.items()}
    if mode == "FLOOR":
        param["round_mode"] = mode
    shape = (*x.shape[:2], *counts)
    made = node.layer("Pooling", x, shape, pooling_param={"pool": method, **param})
    for axis, (first, count) in enumerate(zip(left, wanted, strict=True), start=2):
        made = node.part(made, axis, first, first + count)
    return made, pad


def _corrected(
    node: NodeImport, sizes: Shape, made: Blob, kernel: Shape, strides: Shape, pads: Pads, pad: Shape
) -> Blob:  # fmt: skip
    """Averages of ONNX from those of Caffe, which counts a window as far as `size + pad`."""
    factors = []
    for at, (size, k, step, (begin, end)) in enumerate(zip(sizes, kernel, strides, pads, strict=True)):  # fmt: skip
        starts = np.arange(made.shape[2 + at]) * step - begin
        caffes = np.minimum(starts + k, size + pad[at]) - starts
        if node.option("count_include_pad", 0):
            wanted = np.minimum(starts + k, size + end) - starts
        else:
            wanted = np.minimum(starts + k, size) - np.maximum(starts, 0)
        factors.append(caffes / wanted)
    if all((one == 1).all() for one in factors):
        return made
    return node.layer(
        "Scale", made, None, [np.outer(*factors)], scale_param={"axis": 2, "num_axes": 2}
    )


def _global(method: str) -> Callable[[NodeImport], list[Blob]]:
    def operator(node: NodeImport) -> list[Blob]:
        x = node.blob(0)
        shape = (*x.shape[:2], *[1] * (len(x.shape) - 2))
        return [node.reshaped(_over_places(node, x, method), shape)]

    return operator


def _over_places(node: NodeImport, x: Blob, method: str) -> Blob:
    """One value for each channel."""
    x = _flat(x, node)
    param = {"pool": method, "global_pooling": True}
    return node.layer("Pooling", x, (*x.shape[:2], 1, 1), pooling_param=param)


def _reduce(operation: str) -> Callable[[NodeImport], list[Blob]]:
    def operator(node: NodeImport) -> list[Blob]:
        x = node.blob(0)
        rank = len(x.shape)
        axes = node.whole("axes", 1)
        if axes is None and node.option("noop_with_empty_axes", 0):
            return [x]
        reduced = sorted(node.axis(axis, rank) for axis in axes or range(rank))
        shape = [1 if axis in reduced else size for axis, size in enumerate(x.shape)]
        if not node.option("keepdims", 1):
            shape = [size for axis, size in enumerate(x.shape) if axis not in reduced]
        if reduced in ([2], [2, 3]) and rank == reduced[-1] + 1 and operation in ("MEAN", "MAX"):
            made = _over_places(node, x, "AVE" if operation == "MEAN" else "MAX")
        elif reduced != [*range(reduced[0], rank)] or operation == "MAX" or reduced[0] == 0:
            raise NoLayer(
                f"reduces the axes {reduced} of {rank}; Caffe's Reduction takes sums and means over all axes from one "
                "on, and Pooling means and maxima over height and width: reduce these"
            )
        else:
            param = {"operation": operation, "axis": reduced[0]}
            made = node.layer("Reduction", x, x.shape[: reduced[0]], reduction_param=param)
        return [node.reshaped(made, shape)]

    return operator


OPERATORS: Final = {
    "MaxPool": _pool("MAX"), "AveragePool": _pool("AVE"),
    "GlobalMaxPool": _global("MAX"), "GlobalAveragePool": _global("AVE"),
    "ReduceMean": _reduce("MEAN"), "ReduceSum": _reduce("SUM"), "ReduceMax": _reduce("MAX"),
}  # fmt: skip
