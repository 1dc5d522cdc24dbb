"""A net of Caffe while it is made of the nodes of ONNX: its layers, their weights, and the blobs between them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from caffenets.forms.steps import Shape
from caffenets.from_onnx.graph_file import GraphFile, Node
from caffenets.host_program import caffe_schema
from caffenets.inputs import MOST_VALUES
from caffenets.weight_files.onnx import Tensor

Array = npt.NDArray[Any]
# Layers that may write where they read, and those on whose tops that is safe: they share no memory with their bottoms.
_IN_PLACE: Final = {
    "BatchNorm", "Bias", "ELU", "Exp", "Log", "PReLU", "Power", "ReLU", "Scale", "Sigmoid", "TanH",
}  # fmt: skip
_OWN_MEMORY: Final = _IN_PLACE | {
    "Convolution", "Deconvolution", "Eltwise", "InnerProduct", "Pooling",
}  # fmt: skip


class NoLayer(Exception):
    """A node that no layers of BVLC's Caffe are; the text is the end of a sentence that begins with the node."""


@dataclass(frozen=True, slots=True)
class Blob:
    """What a layer makes, or an input. `pads` are zeros around it, before and after along each axis.

    They are in `shape`, and no layer has added them yet.
    """

    name: str
    shape: Shape
    pads: tuple[tuple[int, int], ...] = ()


Value = Blob | Array | Tensor | None  # None is of a node that could not be expressed


def read(tensor: Tensor) -> Array:
    """The values of a constant. Raises `NoLayer`."""
    if tensor.floats is not None:
        return tensor.floats.read()
    if tensor.whole is None:
        raise NoLayer(f"reads {tensor.name!r}, of a kind or a size that is not read: use float32")
    return tensor.whole


class Net:
    """Layers with their weights, and by the names of ONNX what they make; `inputs` are the shapes of its inputs."""

    def __init__(self, graph: GraphFile, inputs: Mapping[str, Shape]) -> None:
        self.graph = graph
        self.notes: dict[str, None] = {}
        self.layers: list[tuple[Any, list[Array]]] = []
        self.values: dict[str, Value] = dict(graph.constants)
        self._named: set[str] = set()
        self._blobs = {*inputs, *graph.outputs}
        for name, shape in inputs.items():
            word = _unique(name, self._named)
            layer = caffe_schema().LayerParameter(name=word, type="Input", top=[name])
            layer.input_param.shape.add().dim.extend(shape)
            self.layers.append((layer, []))
            self.values[name] = Blob(name, shape)

    def add(
        self,
        name: str,
        kind: str,
        bottoms: Sequence[Blob],
        shapes: Sequence[Shape],
        weights: Sequence[Array] = (),
        **params: Any,
    ) -> list[Blob]:
        """A layer that makes tops of these shapes. Raises `NoLayer` for one larger than Caffe's blobs."""
        if any(math.prod(shape) > MOST_VALUES or min(shape, default=1) < 1 for shape in shapes):
            raise NoLayer(f"makes {shapes[0]}, which no blob is: correct the sizes of the input")
        word = _unique(name, self._named)
        numbers = [""] if len(shapes) == 1 else [f"_{at}" for at in range(len(shapes))]
        tops = [_unique(f"{word}{number}", self._blobs) for number in numbers]
        layer = caffe_schema().LayerParameter(
            name=word, type=kind, bottom=[one.name for one in bottoms], top=tops, **params
        )
        self.layers.append((layer, [np.asarray(one, np.float32) for one in weights]))
        return [Blob(top, shape) for top, shape in zip(tops, shapes, strict=True)]

    def finished(self) -> Any:
        """The NetParameter: outputs have the names of ONNX, and layers write in place where that is safe.

        What nobody reads goes to a Silence layer, or Caffe would make outputs of it.
        """
        called: dict[str, str] = {}
        ends = [NodeImport(self, Node("", one, (one,), (), {})) for one in self.graph.outputs]
        uses = self._uses() + Counter(node.blob(0).name for node in ends)
        for name, node in zip(self.graph.outputs, ends, strict=True):
            found = node.blob(0)
            if uses[found.name] > 1 or found.name in self.graph.inputs:
                found = node.layer("Power", found)  # of what is read, Caffe makes no output
            called[found.name] = name
        uses = self._uses()
        makers = {str(top): str(layer.type) for layer, _ in self.layers for top in layer.top}
        same: dict[str, str] = {}  # of a top that is written in place the first name
        for layer, _ in self.layers:
            if layer.type not in _IN_PLACE or len(layer.bottom) != 1:
                continue
            bottom, top = str(layer.bottom[0]), str(layer.top[0])
            if uses[bottom] == 1 and bottom not in called and makers[bottom] in _OWN_MEMORY:
                same[top] = same.get(bottom, bottom)
        called |= {same[old]: new for old, new in called.items() if old in same}
        unread = [top for top in makers if not uses[top] and top not in called]
        if unread:
            self.add("unread", "Silence", [Blob(top, ()) for top in unread], [])
        net = caffe_schema().NetParameter(name=self.graph.name)
        for layer, _ in self.layers:
            for names in (layer.bottom, layer.top):
                first = [same.get(str(name), str(name)) for name in names]
                names[:] = [called.get(name, name) for name in first]
            net.layer.append(layer)
        return net

    def _uses(self) -> Counter[str]:
        return Counter(str(bottom) for layer, _ in self.layers for bottom in layer.bottom)

    @property
    def shapes(self) -> dict[str, Shape]:
        """Of what layers make, by the names of ONNX."""
        return {name: one.shape for name, one in self.values.items() if isinstance(one, Blob)}


def _unique(name: str, taken: set[str]) -> str:
    """The name, without what tools of Caffe may not take and with a number if it is taken; now it is taken."""
    base = re.sub(r"[^\w.\-]+", "_", name).strip("_") or "layer"
    word, count = base, 1
    while word in taken:
        count += 1
        word = f"{base}_{count}"
    taken.add(word)
    return word


class NodeImport:
    """A node while layers are made of it. Methods raise `NoLayer`."""

    def __init__(self, net: Net, node: Node) -> None:
        self.net, self.node, self.opset = net, node, net.graph.opset

    def value(self, at: int) -> Value:
        """Input `at`: a blob, or an array; None where there is none."""
        name = self.node.inputs[at] if at < len(self.node.inputs) else ""
        found = self.net.values[name] if name else None
        return read(found) if isinstance(found, Tensor) else found

    def blob(self, at: int) -> Blob:
        """Input `at`, which layers make."""
        found = self.value(at)
        if not isinstance(found, Blob):
            raise NoLayer(
                f"has no input {at} that depends on the net's: Caffe has no constant blob"
            )
        return found

    def constant(self, at: int, what: str) -> Array:
        """Input `at`, which must not depend on the net's inputs."""
        found = self.value(at)
        if found is None or isinstance(found, Blob):
            raise NoLayer(f"computes its {what}, which Caffe's layers have fixed: make it constant")
        return np.asarray(found)

    def option(self, name: str, usual: Any = None) -> Any:
        found = self.node.options.get(name)
        return usual if found is None else found

    def axis(self, given: int, rank: int) -> int:
        """An axis, counted from the front."""
        if not -rank <= given < rank:
            raise NoLayer(f"names axis {given} of {rank}: correct it")
        return given % rank

    def whole(self, name: str, at: int, usual: Any = None) -> Any:
        """Whole numbers that are an attribute or, in later opsets, input `at`."""
        if (found := self.option(name)) is not None:
            return list(found) if isinstance(found, list) else [found]
        if self.value(at) is None:
            return usual
        return [int(one) for one in self.constant(at, name).reshape(-1)]

    def layer(
        self,
        kind: str,
        bottoms: Blob | Sequence[Blob],
        shape: Shape | None = None,
        weights: Sequence[Array] = (),
        **params: Any,
    ) -> Blob:
        """A layer with one top, of the shape of its first bottom unless `shape` is given."""
        given = [bottoms] if isinstance(bottoms, Blob) else list(bottoms)
        shapes = [shape or given[0].shape]
        return self.net.add(self.node.name, kind, given, shapes, weights, **params)[0]

    def reshaped(self, blob: Blob, shape: Sequence[int]) -> Blob:
        """The blob in this shape; the batch stays free where it stays the first axis."""
        shape = tuple(shape)
        if math.prod(shape) != math.prod(blob.shape):
            raise NoLayer(f"makes {shape} of {blob.shape}: correct the sizes of the input")
        if shape == blob.shape:
            return blob
        same = shape[:1] == blob.shape[:1]
        if same and len(shape) == 2 < len(blob.shape):
            return self.layer("Flatten", blob, shape)
        dims = [0, *shape[1:]] if same else list(shape)
        return self.layer("Reshape", blob, shape, reshape_param={"shape": {"dim": dims}})

    def cut(self, blob: Blob, axis: int, sizes: Sequence[int]) -> list[Blob]:
        """The blob in pieces of these sizes along an axis."""
        if min(sizes) < 1 or sum(sizes) != blob.shape[axis]:
            raise NoLayer(f"cuts {blob.shape} into {list(sizes)}: give sizes of 1 or more")
        if len(sizes) == 1:
            return [blob]
        shapes = [(*blob.shape[:axis], size, *blob.shape[axis + 1 :]) for size in sizes]
        points = np.cumsum(sizes)[:-1].tolist()
        return self.net.add(
            self.node.name, "Slice", [blob], shapes, slice_param={"axis": axis, "slice_point": points}
        )  # fmt: skip

    def part(self, blob: Blob, axis: int, begin: int, end: int) -> Blob:
        """Places `begin` to `end` along an axis."""
        sizes = [begin, end - begin, blob.shape[axis] - end]
        return self.cut(blob, axis, [size for size in sizes if size])[1 if begin else 0]
