"""Inner products, and what moves values without computing: Concat, Split, Slice, Flatten, Reshape and the like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from caffenets.from_onnx.making import Array, Blob, NodeImport, NoLayer, Value

_MOST_PIECES: Final = 32  # of an axis that is moved


def _inner_product(node: NodeImport, x: Blob, weight: Array, bias: Array | None, axis: int) -> Blob:
    """`weight` is (outputs, inputs)."""
    if weight.ndim != 2 or weight.shape[1] != x.shape[-1]:
        raise NoLayer(f"multiplies {x.shape} by {weight.shape[::-1]}: correct one of them")
    param: dict[str, Any] = {"num_output": weight.shape[0]}
    if axis != 1:
        param["axis"] = axis
    if bias is None:
        param["bias_term"] = False
    weights = [weight] if bias is None else [weight, bias]
    shape = (*x.shape[:-1], weight.shape[0])
    return node.layer("InnerProduct", x, shape, weights, inner_product_param=param)


def _gemm(node: NodeImport) -> list[Blob]:
    x, weight = node.blob(0), node.constant(1, "weights")
    if node.option("transA", 0) or len(x.shape) != 2:
        raise NoLayer("takes its input transposed or of other than 2 axes: flatten it before")
    weight = np.float32(node.option("alpha", 1.0)) * weight
    weight = weight if node.option("transB", 0) else weight.T
    bias = None
    if node.value(2) is not None:
        given = node.constant(2, "bias") * np.float32(node.option("beta", 1.0))
        if given.size not in (1, weight.shape[0]):
            raise NoLayer(f"has a bias of {given.shape} for {weight.shape[0]} outputs: correct it")
        bias = np.broadcast_to(given.reshape(-1), (weight.shape[0],))
    return [_inner_product(node, x, weight, bias, 1)]


def _matmul(node: NodeImport) -> list[Blob]:
    x, weight = node.blob(0), node.constant(1, "second operand")
    if len(x.shape) < 2:
        raise NoLayer("multiplies a row alone: give it a batch")
    return [_inner_product(node, x, weight.T, None, len(x.shape) - 1)]


def _concat(node: NodeImport) -> list[Blob]:
    blobs = [node.blob(at) for at in range(len(node.node.inputs))]
    axis = node.axis(node.option("axis", 1), len(blobs[0].shape))
    rests = {(*one.shape[:axis], *one.shape[axis + 1 :]) for one in blobs}
    if len(rests) > 1:
        raise NoLayer(f"joins blobs of {[one.shape for one in blobs]}: correct their sizes")
    shape = list(blobs[0].shape)
    shape[axis] = sum(one.shape[axis] for one in blobs)
    param = {} if axis == 1 else {"axis": axis}
    return [node.layer("Concat", blobs, tuple(shape), concat_param=param)]


def _split(node: NodeImport) -> list[Blob]:
    x = node.blob(0)
    axis, count = node.axis(node.option("axis", 0), len(x.shape)), len(node.node.outputs)
    each = -(-x.shape[axis] // count)
    usual = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    return node.cut(x, axis, node.whole("split", 1, usual))


def _slice(node: NodeImport) -> list[Blob]:
    x = node.blob(0)
    starts, ends = node.whole("starts", 1, []), node.whole("ends", 2, [])
    axes = node.whole("axes", 3, list(range(len(starts))))
    steps = node.whole("steps", 4, [1] * len(starts))
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis, size = node.axis(axis, len(x.shape)), x.shape[axis]
        begin, stop, _ = slice(start, end, 1).indices(size)
        if step != 1 or stop <= begin:
            raise NoLayer(
                f"takes {start}:{end}:{step} of {size} places: take some, one after another"
            )
        x = node.part(x, axis, begin, stop)
    return [x]


def _gather(node: NodeImport) -> list[Blob]:
    x, index = node.blob(0), node.constant(1, "index")
    axis = node.axis(node.option("axis", 0), len(x.shape))
    if index.size != 1:
        raise NoLayer("takes several places by a list, which no layer does: use Slice and Concat")
    at = node.axis(int(index.reshape(-1)[0]), x.shape[axis])
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    return [node.reshaped(node.part(x, axis, at, at + 1), shape)]


def _flatten(node: NodeImport) -> list[Blob]:
    x, axis = node.blob(0), node.option("axis", 1)
    axis = axis if axis == len(node.blob(0).shape) else node.axis(axis, len(x.shape))
    return [node.reshaped(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))]


def _reshape(node: NodeImport) -> list[Blob]:
    x = node.blob(0)
    wanted = node.option("shape") or node.constant(1, "shape").reshape(-1).tolist()
    return [node.reshaped(x, shape_of(x.shape, wanted, bool(node.option("allowzero", 0))))]


def shape_of(shape: Sequence[int], wanted: Sequence[int], zero: bool = False) -> list[int]:
    """What Reshape makes of a shape: 0 keeps a size, -1 takes what is left."""
    sizes = [shape[at] if size == 0 and not zero else int(size) for at, size in enumerate(wanted)]
    if -1 in sizes:
        rest = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = math.prod(shape) // max(rest, 1)
    return sizes


def _squeeze(node: NodeImport) -> list[Blob]:
    x = node.blob(0)
    axes = node.whole("axes", 1, [at for at, size in enumerate(x.shape) if size == 1])
    taken = {node.axis(axis, len(x.shape)) for axis in axes}
    return [node.reshaped(x, [size for at, size in enumerate(x.shape) if at not in taken])]


def _unsqueeze(node: NodeImport) -> list[Blob]:
    x, axes = node.blob(0), node.whole("axes", 1, [])
    shape = iter(x.shape)
    rank = len(x.shape) + len(axes)
    added = {node.axis(axis, rank) for axis in axes}
    return [node.reshaped(x, [1 if at in added else next(shape) for at in range(rank)])]


def _transpose(node: NodeImport) -> list[Blob]:
    x = node.blob(0)
    order = node.option("perm") or [*range(len(x.shape))][::-1]
    shape = [x.shape[axis] for axis in order]
    moved = [axis for axis in order if x.shape[axis] != 1]
    if moved == sorted(moved):
        return [node.reshaped(x, shape)]
    for axis in moved:  # one that is short: its places are cut apart, and joined where it is to be
        rest = [one for one in moved if one != axis]
        if rest == sorted(rest) and x.shape[axis] <= _MOST_PIECES:
            at = order.index(axis)
            piece = [*shape[:at], 1, *shape[at + 1 :]]
            pieces = node.cut(x, axis, [1] * x.shape[axis])
            joined = [node.reshaped(one, piece) for one in pieces]
            return [node.layer("Concat", joined, tuple(shape), concat_param={"axis": at})]
    raise NoLayer(
        f"puts the axes of {x.shape} in the order {order}, which no layer of BVLC's Caffe does: export the net "
        "with channels before height and width, or leave the node out"
    )


def _same(node: NodeImport) -> list[Value]:
    return [node.value(0)]


def _cast(node: NodeImport) -> list[Blob]:
    if node.option("to", 1) not in (1, 10, 11, 16):
        raise NoLayer("makes whole numbers, and Caffe's blobs are of float32: leave it out")
    return [node.blob(0)]


def _dropout(node: NodeImport) -> list[Blob]:
    if len(node.node.outputs) > 1 and node.node.outputs[1]:
        raise NoLayer("gives its mask away: export the net for inference")
    return [node.blob(0)]


OPERATORS: Final = {
    "Gemm": _gemm, "MatMul": _matmul, "Concat": _concat, "Split": _split, "Slice": _slice, "Gather": _gather,
    "Flatten": _flatten, "Reshape": _reshape, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze,
    "Transpose": _transpose, "Identity": _same, "Cast": _cast, "Dropout": _dropout,
}  # fmt: skip
