"""Activations, normalizations by stored numbers, and arithmetic of blobs with blobs or constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from caffenets.from_onnx.making import Array, Blob, NodeImport, NoLayer

_UNBOUNDED: Final = 3e38  # a bound that exporters write for none


def _plain(kind: str, **params: Any) -> Callable[[NodeImport], list[Blob]]:
    return lambda node: [node.layer(kind, node.blob(0), **params)]


def _affine(node: NodeImport, x: Blob, scale: float, shift: float) -> Blob:
    if scale == 1.0 and shift == 0.0:
        return x
    return node.layer("Power", x, power_param={"scale": scale, "shift": shift})


def _clipped(node: NodeImport, x: Blob, low: float | None, high: float | None) -> Blob:
    """min(max(x, low), high) of ReLU and Power, which each Caffe has: high - ReLU(high - low - ReLU(x - low))."""
    if low is not None:
        x = node.layer("ReLU", _affine(node, x, 1.0, -low))
    if high is None:
        return _affine(node, x, 1.0, low or 0.0)
    return _affine(
        node, node.layer("ReLU", _affine(node, x, -1.0, high - (low or 0.0))), -1.0, high
    )


def _clip(node: NodeImport) -> list[Blob]:
    bounds: list[float | None] = []
    for at, name in enumerate(("min", "max"), start=1):
        found = node.option(name)
        if found is None and node.value(at) is not None:
            found = float(node.constant(at, name).reshape(-1)[0])
        bounds.append(found if found is not None and abs(found) < _UNBOUNDED else None)
    return [_clipped(node, node.blob(0), bounds[0], bounds[1])]


def _hard_sigmoid(node: NodeImport) -> list[Blob]:
    x = _affine(node, node.blob(0), node.option("alpha", 0.2), node.option("beta", 0.5))
    return [_clipped(node, x, 0.0, 1.0)]


def _hard_swish(node: NodeImport) -> list[Blob]:
    x = node.blob(0)
    gate = _clipped(node, _affine(node, x, 1 / 6, 0.5), 0.0, 1.0)
    return [_eltwise(node, [x, gate], "PROD")]


def _prelu(node: NodeImport) -> list[Blob]:
    x, slope = node.blob(0), node.constant(1, "slope")
    one = slope.size == 1
    if not one and slope.shape != (x.shape[1], *[1] * (len(x.shape) - 2)):
        raise NoLayer(f"has a slope of {slope.shape}; Caffe has one for each channel: reshape it")
    shape = () if one else (x.shape[1],)
    values = slope.reshape(shape)
    return [node.layer("PReLU", x, None, [values], prelu_param={"channel_shared": one})]


def _batch_normalization(node: NodeImport) -> list[Blob]:
    x = node.blob(0)
    names = ("scale", "bias", "mean", "variance")
    scale, bias, mean, variance = (
        node.constant(at, name).reshape(-1) for at, name in enumerate(names, start=1)
    )
    if node.option("training_mode", 0) or len(x.shape) < 2:
        raise NoLayer("normalizes by the batch's own statistics: export the net for inference")
    if {one.size for one in (scale, bias, mean, variance)} != {x.shape[1]}:
        raise NoLayer(f"has not one {' and '.join(names)} for each of {x.shape[1]} channels")
    eps, blobs = node.option("epsilon", 1e-5), [mean, variance, np.ones(1)]
    made = node.layer("BatchNorm", x, None, blobs, batch_norm_param={"eps": eps})
    return [node.layer("Scale", made, None, [scale, bias], scale_param={"bias_term": True})]


def _lrn(node: NodeImport) -> list[Blob]:
    size = node.option("size", 1)
    if size % 2 == 0:
        raise NoLayer(f"sums over {size} channels, and Caffe over an odd number: use one")
    usual = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}
    alpha, beta, k = (node.option(name, value) for name, value in usual.items())
    param = {"local_size": size, "alpha": alpha, "beta": beta, "k": k}
    return [node.layer("LRN", node.blob(0), lrn_param=param)]


def _softmax(node: NodeImport) -> list[Blob]:
    x = node.blob(0)
    axis = node.axis(node.option("axis", -1 if node.opset >= 13 else 1), len(x.shape))
    flat = x
    if node.opset < 13 and axis != len(x.shape) - 1:  # over all axes from this one on
        flat = node.reshaped(x, (*x.shape[:axis], int(np.prod(x.shape[axis:]))))
    made = node.layer("Softmax", flat, softmax_param={} if axis == 1 else {"axis": axis})
    if node.node.op == "LogSoftmax":
        node.net.notes["LogSoftmax is Softmax and Log: values below -87 become -inf"] = None
        made = node.layer("Log", made)
    return [node.reshaped(made, x.shape)]


def _eltwise(node: NodeImport, blobs: list[Blob], operation: str, *factors: float) -> Blob:
    param = {"operation": operation, **({"coeff": factors} if factors else {})}
    return node.layer("Eltwise", blobs, eltwise_param=param)


def _stretched(node: NodeImport, x: Blob, shape: Sequence[int]) -> Blob:
    """The blob repeated where its size is 1 and that of `shape` is not."""
    x = node.reshaped(x, (*[1] * (len(shape) - len(x.shape)), *x.shape))
    for axis, (size, wanted) in enumerate(zip(x.shape, shape, strict=True)):
        if size != wanted:
            param = {"axis": axis, "tiles": wanted}
            longer = (*x.shape[:axis], wanted, *x.shape[axis + 1 :])
            x = node.layer("Tile", x, longer, tile_param=param)
    return x


def _by_constant(node: NodeImport, x: Blob, values: Array, kind: str) -> Blob:
    """x times or plus constants."""
    if values.size == 1:
        one = float(values.reshape(-1)[0])
        return _affine(node, x, one, 0.0) if kind == "Scale" else _affine(node, x, 1.0, one)
    x = _stretched(node, x, np.broadcast_shapes(x.shape, values.shape))
    whole = values.reshape((*[1] * (len(x.shape) - values.ndim), *values.shape))
    covered = [axis for axis, size in enumerate(whole.shape) if size != 1]
    first, end = covered[0], covered[-1] + 1
    blob = np.broadcast_to(whole.reshape(whole.shape[first:end]), x.shape[first:end])
    param: Any = {f"{kind.lower()}_param": {"axis": first, "num_axes": end - first}}
    return node.layer(kind, x, None, [blob], **param)


def _by_blob(node: NodeImport, x: Blob, other: Blob, operation: str) -> Blob:
    """Two blobs of other shapes: Scale or Bias where one has the first axes of the other, else both repeated."""
    shape = np.broadcast_shapes(x.shape, other.shape)
    if x.shape != shape:
        x, other = other, x
    own = (*[1] * (len(shape) - len(other.shape)), *other.shape)
    end = max([axis + 1 for axis, size in enumerate(own) if size != 1], default=1)
    if x.shape == shape and own[:end] == shape[:end] and operation != "MAX":
        kind = "Scale" if operation == "PROD" else "Bias"
        param: Any = {f"{kind.lower()}_param": {"axis": 0}}
        return node.layer(kind, [x, node.reshaped(other, shape[:end])], **param)
    return _eltwise(node, [_stretched(node, one, shape) for one in (x, other)], operation)


def _joined(node: NodeImport, a: Blob | Array, b: Blob | Array, operation: str) -> Blob:
    """SUM, PROD or MAX of two operands, one a blob at least."""
    if not isinstance(a, Blob):
        a, b = b, a
    if not isinstance(a, Blob):
        raise NoLayer("does not depend on the input, and is not computed here: make it constant")
    if isinstance(b, Blob):
        if a.shape == b.shape:
            return _eltwise(node, [a, b], operation)
        return _by_blob(node, a, b, operation)
    if operation == "MAX":
        return _by_constant(node, node.layer("ReLU", _by_constant(node, a, -b, "Bias")), b, "Bias")
    return _by_constant(node, a, b, "Scale" if operation == "PROD" else "Bias")


def _operands(node: NodeImport) -> list[Any]:
    return [node.value(at) for at in range(len(node.node.inputs))]


def _folded(operation: str) -> Callable[[NodeImport], list[Blob]]:
    """SUM, PROD or MAX of as many operands as there are."""

    def operator(node: NodeImport) -> list[Blob]:
        first, *others = _operands(node)
        shapes = [one.shape for one in (first, *others) if isinstance(one, Blob)]
        if len(shapes) == 1 + len(others) > 1 and len(set(shapes)) == 1:
            return [_eltwise(node, [first, *others], operation)]
        for other in others:
            first = _joined(node, first, other, operation)
        return [first]

    return operator


def _negative(node: NodeImport, one: Any) -> Any:
    return _affine(node, one, -1.0, 0.0) if isinstance(one, Blob) else -one


def _sub(node: NodeImport) -> list[Blob]:
    a, b = _operands(node)
    if isinstance(a, Blob) and isinstance(b, Blob) and a.shape == b.shape:
        return [_eltwise(node, [a, b], "SUM", 1.0, -1.0)]
    return [_joined(node, a, _negative(node, b), "SUM")]


def _min(node: NodeImport) -> list[Blob]:
    first, *others = (_negative(node, one) for one in _operands(node))
    for other in others:
        first = _joined(node, first, other, "MAX")
    return [_negative(node, first)]


def _div(node: NodeImport) -> list[Blob]:
    a, b = _operands(node)
    is_blob = isinstance(b, Blob)
    inverse = node.layer("Power", b, power_param={"power": -1.0}) if is_blob else 1.0 / b
    return [_joined(node, a, inverse, "PROD")]


def _pow(node: NodeImport) -> list[Blob]:
    power = node.constant(1, "exponent")
    if power.size != 1:
        raise NoLayer("has an exponent for each place; Caffe's Power has one: use one")
    return [node.layer("Power", node.blob(0), power_param={"power": float(power.reshape(-1)[0])})]


OPERATORS: Final = {
    "Relu": _plain("ReLU"), "Sigmoid": _plain("Sigmoid"), "Tanh": _plain("TanH"), "Abs": _plain("AbsVal"),
    "Exp": _plain("Exp"), "Log": _plain("Log"), "Softplus": _plain("BNLL"),
    "Neg": _plain("Power", power_param={"scale": -1.0}), "Sqrt": _plain("Power", power_param={"power": 0.5}),
    "Reciprocal": _plain("Power", power_param={"power": -1.0}),
    "LeakyRelu": lambda node: _plain("ReLU", relu_param={"negative_slope": node.option("alpha", 0.01)})(node),
    "Elu": lambda node: _plain("ELU", elu_param={"alpha": node.option("alpha", 1.0)})(node), "PRelu": _prelu,
    "Clip": _clip, "HardSigmoid": _hard_sigmoid, "HardSwish": _hard_swish,
    "BatchNormalization": _batch_normalization, "LRN": _lrn, "Softmax": _softmax, "LogSoftmax": _softmax,
    "Add": _folded("SUM"), "Sum": _folded("SUM"), "Mul": _folded("PROD"), "Max": _folded("MAX"),
    "Sub": _sub, "Min": _min, "Div": _div, "Pow": _pow,
}  # fmt: skip
