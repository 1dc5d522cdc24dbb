"""Nodes whose inputs are constants, or whose value is a shape: computed here, and no layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from caffenets.from_onnx.making import Array, Blob, NodeImport, NoLayer, read
from caffenets.from_onnx.operators.shapes import shape_of
from caffenets.weight_files.onnx import Tensor

_MOST: Final = 1 << 26  # values of a constant that is computed
_FLOATS: Final = (1, 10, 11, 16)  # ONNX, TensorProto.DataType


def folded(node: NodeImport) -> list[Array] | None:
    """The constants that this node makes; None where it computes of what depends on the net's inputs."""
    op = node.node.op
    if op == "Constant":
        return [_stated(node)]
    if op not in FOLDED:
        return None
    given = [node.value(at) for at in range(len(node.node.inputs))]
    if op in ("Shape", "Size"):
        of: Any = given[0]
        sizes = np.array(of.shape)
        whole = sizes[node.option("start", 0) : node.option("end")]
        return [sizes.prod() if op == "Size" else whole]
    if any(isinstance(one, Blob) for one in given):
        return None
    return [np.asarray(_FOLDS[op](node, *given))]


def _stated(node: NodeImport) -> Array:
    for name, value in node.node.options.items():
        if isinstance(value, Tensor):
            return read(value)
        if value is not None and name.startswith("value_") and not isinstance(value, str):
            return np.asarray(value, np.float32 if "float" in name else np.int64)
    raise NoLayer("has no value that is read: use float32 or whole numbers")


def _bounded(*shape: int) -> tuple[int, ...]:
    if any(size < 0 for size in shape) or math.prod(shape) > _MOST:
        raise NoLayer(f"makes a constant of {shape}: correct the shapes")
    return shape


def _binary(do: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def fold(node: NodeImport, a: Array, b: Array) -> Array:
        _bounded(*np.broadcast_shapes(a.shape, b.shape))
        with np.errstate(all="ignore"):
            return do(a, b)

    return fold


def _div(a: Array, b: Array) -> Array:
    return np.fix(a / b).astype(np.int64) if a.dtype.kind == b.dtype.kind == "i" else a / b


def _gather(node: NodeImport, a: Array, index: Array) -> Array:
    axis = node.option("axis", 0)
    _bounded(*a.shape[:axis], *index.shape, *a.shape[axis:][1:])
    return np.take(a, index, axis)


def _slice(node: NodeImport, a: Array, *_: Array) -> Array:
    starts, ends = node.whole("starts", 1, []), node.whole("ends", 2, [])
    axes = node.whole("axes", 3, list(range(len(starts))))
    cuts = [slice(None)] * a.ndim
    for at, axis in enumerate(axes):
        cuts[axis] = slice(starts[at], ends[at], node.whole("steps", 4, [1] * len(starts))[at])
    return a[tuple(cuts)]


def _cast(node: NodeImport, a: Array) -> Array:
    return a.astype(np.float32 if node.option("to") in _FLOATS else np.int64)


def _filled(node: NodeImport, shape: Array) -> Array:
    value = node.option("value")
    filler = read(value).reshape(-1)[0] if isinstance(value, Tensor) else np.float32(0)
    return np.full(_bounded(*map(int, shape)), filler)


def _expand(node: NodeImport, a: Array, shape: Array) -> Array:
    wanted = np.broadcast_shapes(a.shape, tuple(map(int, shape)))
    return np.broadcast_to(a, _bounded(*wanted))


def _axes(node: NodeImport) -> Any:
    return tuple(node.whole("axes", 1, []))


_FOLDS: Final[Mapping[str, Callable[..., Any]]] = {
    "Add": _binary(np.add), "Sub": _binary(np.subtract), "Mul": _binary(np.multiply), "Div": _binary(_div),
    "Pow": _binary(np.power), "Equal": _binary(np.equal), "Max": _binary(np.maximum), "Min": _binary(np.minimum),
    "Sqrt": lambda node, a: np.sqrt(a), "Neg": lambda node, a: -a, "Floor": lambda node, a: np.floor(a),
    "Ceil": lambda node, a: np.ceil(a), "Identity": lambda node, a: a, "Cast": _cast, "Gather": _gather,
    "Slice": _slice, "ConstantOfShape": _filled, "Expand": _expand,
    "Unsqueeze": lambda node, a, *_: np.expand_dims(a, _axes(node)),
    "Squeeze": lambda node, a, *_: np.squeeze(a, _axes(node) or None),
    "Concat": lambda node, *all: np.concatenate(all, node.option("axis", 0)),
    "Reshape": lambda node, a, shape: a.reshape(shape_of(a.shape, shape.tolist())),
    "Transpose": lambda node, a: np.transpose(a, node.option("perm")),
    "Where": lambda node, c, a, b: np.where(c.astype(bool), a, b),
}  # fmt: skip
FOLDED: Final = frozenset(_FOLDS) | {"Constant", "Shape", "Size"}
