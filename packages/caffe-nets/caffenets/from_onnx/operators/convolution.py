"""Conv and ConvTranspose, Pad, and Upsample by whole factors: Convolution and Deconvolution.

Caffe pads both sides alike. Zeros around the kernel make up for what ONNX pads on one side more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from caffenets.forms.steps import Shape
from caffenets.from_onnx.making import Array, Blob, NodeImport, NoLayer
from caffenets.inputs import MOST_VALUES

_MOST_ONE_SIDED: Final = 1024
Pads = list[tuple[int, int]]


def pads_of(node: NodeImport, sizes: Shape, spans: Shape, strides: Sequence[int]) -> Pads:
    """What the node pads before and after along each axis; `spans` are what a window covers."""
    auto = node.option("auto_pad", "NOTSET")
    if auto.startswith("SAME"):
        found = []
        for size, span, stride in zip(sizes, spans, strides, strict=True):
            total = max(0, (-(-size // stride) - 1) * stride + span - size)
            less, more = total // 2, total - total // 2
            found.append((less, more) if auto == "SAME_UPPER" else (more, less))
        return found
    given = node.option("pads") if auto == "NOTSET" else None
    axes = len(sizes)
    return pairs(given or [0] * (2 * axes), axes)


def pairs(given: Sequence[int], axes: int) -> Pads:
    """ONNX's row of all begins and all ends as pairs. Raises `NoLayer` for a wrong number of them."""
    if len(given) != 2 * axes or max(map(abs, given), default=0) > MOST_VALUES:
        raise NoLayer(f"pads by {list(given)}, which does not fit {axes} axes: correct the pads")
    return list(zip(given[:axes], given[axes:], strict=True))


def strides_of(node: NodeImport, name: str, axes: int) -> Shape:
    """Strides or dilations. Raises `NoLayer` for a wrong number of them."""
    found = tuple(node.option(name) or [1] * axes)
    if len(found) != axes or min(found) < 1:
        raise NoLayer(f"has {name} {list(found)} for {axes} axes: use 1 or more for each")
    return found


def grown(kernel: Array, axis: int, dilation: int, before: int, after: int) -> Array:
    """The weights with rows of zeros around them along a spatial axis, which are `dilation` apart."""
    sides = [(0, 0)] * kernel.ndim
    sides[axis] = (before // dilation, after // dilation)
    if kernel.size // kernel.shape[axis] * (kernel.shape[axis] + sum(sides[axis])) > MOST_VALUES:
        raise NoLayer("pads one side by far more than the other: pad both alike")
    return np.pad(kernel, sides)


def spread(kernel: Array, axis: int, dilation: int) -> Array:
    """The weights of a kernel without dilation that does the same."""
    shape = [*kernel.shape]
    shape[axis] = (shape[axis] - 1) * dilation + 1
    if math.prod(shape) > MOST_VALUES:
        raise NoLayer(f"has a dilation of {dilation}, too large for one-sided pads: pad both alike")
    found = np.zeros(shape, np.float32)
    found[(*[slice(None)] * axis, slice(None, None, dilation))] = kernel
    return found


def per_axis(name: str, pair: str, values: Sequence[int], usual: int = -1) -> dict[str, Any]:
    """The options of windows as Caffe's older tools read them, too; nothing for what is usual."""
    if set(values) == {usual}:
        return {}
    if len(set(values)) == 1:
        return {name: [values[0]]}
    if len(values) == 2 and pair:
        return {f"{pair}_h": values[0], f"{pair}_w": values[1]}
    return {name: list(values)}


def _conv(node: NodeImport) -> list[Blob]:
    x, weight = node.blob(0), node.constant(1, "weights")
    if any(map(any, x.pads[:2])) or any(min(one) < 0 for one in x.pads):
        x = with_zeros(node, x)
    group = node.option("group", 1)
    axes = _check(x, weight, group, weight.shape[1] if weight.ndim > 1 else 0)
    own = x.pads[2:] or [(0, 0)] * axes
    strides = strides_of(node, "strides", axes)
    dilations = list(strides_of(node, "dilations", axes))
    spans = tuple(d * (k - 1) + 1 for d, k in zip(dilations, weight.shape[2:], strict=True))
    pads, shape = [], [x.shape[0], weight.shape[0]]
    given = pads_of(node, x.shape[2:], spans, strides)
    for at, ((begin, end), stride, span) in enumerate(zip(given, strides, spans, strict=True)):
        begin, end = begin + own[at][0], end + own[at][1]
        size, axis = x.shape[2 + at] - sum(own[at]), 2 + at
        count = (size + begin + end - span) // stride
        if size + begin + end < span or min(begin, end) < 0:
            raise NoLayer("has a kernel that is larger than its padded input: use a smaller one")

        more = abs(end - begin)
        if more > _MOST_ONE_SIDED:
            raise NoLayer(f"pads one side by {more} more than the other: pad both alike")
        room, step = size + 2 * begin - span, dilations[at]
        grows = [n * side for n in range(0, more + 1, step) for side in (1, -1)]
        by = next((n for n in grows if room + n >= 0 and (room + n) // stride == count), None)
        if by is None:
            weight, dilations[at], by = spread(weight, axis, step), 1, end - begin
        weight = grown(weight, axis, dilations[at], max(by, 0), max(-by, 0))
        pads.append(begin + max(by, 0))
        shape.append(count + 1)
    source = Blob(x.name, _unpadded(x)) if x.pads else x
    weights = [weight, *_bias(node, shape[1])]
    return [_layer(node, "Convolution", source, shape, weights, group, pads, strides, dilations)]


def _conv_transpose(node: NodeImport) -> list[Blob]:
    x, weight = node.blob(0), node.constant(1, "weights")
    group = node.option("group", 1)
    axes = _check(x, weight, group, 0)
    if node.option("output_shape") or node.option("auto_pad", "NOTSET").startswith("SAME"):
        raise NoLayer("has output_shape or auto_pad, which runtimes take in two ways: give pads")
    strides = strides_of(node, "strides", axes)
    dilations = list(strides_of(node, "dilations", axes))
    given = pads_of(node, x.shape[2:], x.shape[2:], strides)
    beyond = node.option("output_padding") or [0] * axes
    pads, shape = [], [x.shape[0], weight.shape[1] * group]
    for at, ((begin, end), more) in enumerate(zip(given, beyond, strict=True)):
        by, span = more + begin - end, dilations[at] * (weight.shape[2 + at] - 1) + 1
        shape.append(strides[at] * (x.shape[2 + at] - 1) + span + more - begin - end)
        if by % dilations[at]:
            weight, dilations[at] = spread(weight, 2 + at, dilations[at]), 1
        weight = grown(weight, 2 + at, dilations[at], max(-by, 0), max(by, 0))
        pads.append(begin + max(-by, 0))
    weights = [weight, *_bias(node, shape[1])]
    return [_layer(node, "Deconvolution", x, shape, weights, group, pads, strides, dilations)]


def _check(x: Blob, weight: Array, group: int, channels: int) -> int:
    """The number of spatial axes. Raises `NoLayer` for weights that do not fit."""
    axes = len(x.shape) - 2
    if not 1 <= axes <= 3:
        raise NoLayer(f"slides over an input of {len(x.shape)} axes: give it 3 to 5")
    wanted = channels * group if channels else weight.shape[0]
    if weight.ndim != len(x.shape) or group < 1 or wanted != x.shape[1] or weight.shape[0] % group:
        raise NoLayer(
            f"has weights of {weight.shape} in {group} groups for an input of {x.shape}: correct one of them"
        )
    return axes


def _layer(
    node: NodeImport, kind: str, x: Blob, shape: Sequence[int], weights: Sequence[Array], group: int,
    pads: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
) -> Blob:  # fmt: skip
    return node.layer(
        kind, x, tuple(shape), weights,
        convolution_param={
            "num_output": shape[1], **per_axis("kernel_size", "kernel", weights[0].shape[2:]),
            **per_axis("stride", "stride", strides, 1), **per_axis("pad", "pad", pads, 0),
            **per_axis("dilation", "", dilations, 1), **({"group": group} if group > 1 else {}),
            **({"bias_term": False} if len(weights) == 1 else {}),
        },
    )  # fmt: skip


def _bias(node: NodeImport, channels: int) -> list[Array]:
    """The bias, if there is one."""
    if node.value(2) is None:
        return []
    bias = node.constant(2, "bias").reshape(-1)
    if bias.size != channels:
        raise NoLayer(f"has a bias of {bias.size} values for {channels} channels: correct it")
    return [bias]


def _unpadded(blob: Blob) -> Shape:
    return tuple(size - sum(pad) for size, pad in zip(blob.shape, blob.pads, strict=True))


def with_zeros(node: NodeImport, blob: Blob) -> Blob:
    """The blob with the zeros of its `pads`, or without what they cut off."""
    if not blob.pads:
        return blob
    sizes = _unpadded(blob)
    found = Blob(blob.name, tuple(sizes))
    for axis, (begin, end) in enumerate(blob.pads):
        if min(begin, end) < 0:
            found = node.part(found, axis, max(-begin, 0), sizes[axis] + min(end, 0))
    sides = [(max(begin, 0), max(end, 0)) for begin, end in blob.pads]
    if any(map(any, sides[:2])) or (any(map(any, sides)) and len(sizes) < 3):
        raise NoLayer("pads channels or records, and Caffe pads height and width: pad these alone")
    if not any(map(any, sides)):
        return found
    weight = np.ones((sizes[1], 1, *[1] * len(sizes[2:])), np.float32)
    for axis, (begin, end) in enumerate(sides[2:], start=2):
        weight = grown(weight, axis, 1, max(0, end - begin), max(0, begin - end))
    pads = [max(pair) for pair in sides[2:]]
    ones = [1] * len(pads)
    return _layer(node, "Convolution", found, blob.shape, [weight], sizes[1], pads, ones, ones)


def _pad(node: NodeImport) -> list[Blob]:
    x, axes = node.blob(0), node.whole("axes", 3)
    filled = node.value(2)
    value = float(node.option("value", 0.0)) if filled is None else float(node.constant(2, "value"))
    if node.option("mode", "constant") != "constant" or value != 0.0:
        raise NoLayer("pads with other values than zeros, which no layer does: pad with zeros")
    rank = len(x.shape)
    given = pairs(node.whole("pads", 1, []), rank if axes is None else len(axes))
    pads = [(0, 0)] * rank
    for axis, pair in zip(range(rank) if axes is None else axes, given, strict=True):
        pads[node.axis(axis, rank)] = pair
    shape = tuple(size + sum(pair) for size, pair in zip(x.shape, pads, strict=True))
    if min(shape) < 1 or math.prod(shape) > MOST_VALUES:
        raise NoLayer(f"makes {shape}, which no blob is: correct the pads")
    return [Blob(x.name, shape, tuple(pads))]


def _resize(node: NodeImport) -> list[Blob]:
    """By whole factors, each place repeated: a deconvolution with ones."""
    x, upsample = node.blob(0), node.node.op == "Upsample"
    sizes: Any = None if upsample else node.value(3)
    given = node.option("scales") or node.value(1 if upsample else 2)
    scales = np.asarray(given if sizes is None else np.divide(sizes, x.shape), np.float64)
    ways = [
        node.option(name, usual)
        for name, usual in (
            ("mode", "nearest"), ("coordinate_transformation_mode", "half_pixel"),
            ("nearest_mode", "round_prefer_floor"),
        )
    ]  # fmt: skip
    plain = upsample or ways[1:] in (["asymmetric", "floor"], ["half_pixel", "round_prefer_floor"])
    whole = scales.shape == (len(x.shape),) and all(n >= 1 and n == int(n) for n in scales)
    if ways[0] != "nearest" or not plain or not whole or len(x.shape) < 3 or scales[:2].max() > 1:
        raise NoLayer(
            "resizes otherwise than by whole factors and with the nearest place (mode nearest, asymmetric and floor), "
            "which no layer of Caffe does: resize in this way, or learn a ConvTranspose"
        )
    factors = [int(one) for one in scales[2:]]
    shape = (*x.shape[:2], *(n * by for n, by in zip(x.shape[2:], factors, strict=True)))
    if max(factors) > MOST_VALUES // math.prod(x.shape):
        raise NoLayer(f"makes {shape}, which no blob is: correct the factors")
    weight = np.ones((x.shape[1], 1, *factors), np.float32)
    zeros, ones = [0] * len(factors), [1] * len(factors)
    return [_layer(node, "Deconvolution", x, shape, [weight], x.shape[1], zeros, factors, ones)]


OPERATORS: Final = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "Pad": _pad, "Resize": _resize, "Upsample": _resize,
}  # fmt: skip
