"""Layers that pick rows by indices: BatchReindex, Filter, Embed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import numpy as np

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.torch_code import Code
from caffenets.layer import Array, BlobSpec, Layer, Shape
from caffenets.torch_later import Tensor, functional


class BatchReindex(Layer):
    """The first bottom's items in the order of the indices in the second.

    An index may come several times; its gradients are added. Caffe: layers/batch_reindex_layer.cpp.
    """

    bottoms = (2, 2)
    constant: ClassVar[Mapping[int, str]] = {1: "indices"}

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        data, indices = bottoms
        if len(indices) != 1:
            raise self.refuse(f"needs indices of one axis, its second bottom has {len(indices)}")
        return [(indices[0], *data[1:])]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        data, indices = bottoms
        items = data.shape[0]
        what = f"has the index {{}}, outside of 0 to {items - 1}, the items of its batch"
        return [data.index_select(0, self.checked(indices.long(), items, what))]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [graph.add("Gather", bottoms[0], graph.add("Cast", bottoms[1], to=7))]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [f"{bottoms[0]}.index_select(0, {bottoms[1]}.long())"]

    def draw(self, at: int, shape: Shape, rng: np.random.Generator) -> Array | None:
        return np.arange(shape[0])[::-1] if at == 1 else None


class Filter(Layer):
    """Of each bottom the items whose value in the last bottom, the selector, is not 0.

    The tops' first axis changes with each batch. Caffe: layers/filter_layer.cpp.
    """

    bottoms = (2, None)
    tops = (1, None)
    constant: ClassVar[Mapping[int, str]] = {-1: "selector"}

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        *data, selector = bottoms
        if len(self.param.top) != len(data):
            raise self.refuse(
                f"has {len(self.param.top)} tops and {len(data)} bottoms before its selector: "
                "give each bottom one top"
            )
        if any(size != 1 for size in selector[1:]):
            raise self.refuse(f"needs a selector with one value an item, its shape is {selector}")
        if any(shape[0] != selector[0] for shape in data):
            raise self.refuse("has bottoms with another number of items than its selector")
        # As in Caffe, before the first batch all items count as chosen.
        return list(data)

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        *data, selector = bottoms
        chosen = selector.reshape(-1).nonzero().reshape(-1)
        return [bottom.index_select(0, chosen) for bottom in data]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        *data, selector = bottoms
        row = graph.add("Reshape", selector, graph.integers(-1))
        chosen = graph.add("Cast", row, to=9)
        return [graph.add("Compress", one, chosen, axis=0) for one in data]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        *data, selector = bottoms
        return [f"{one}[{selector}.reshape(-1) != 0]" for one in data]

    def draw(self, at: int, shape: Shape, rng: np.random.Generator) -> Array | None:
        if at != len(self.param.bottom) - 1:
            return None
        return np.reshape(np.arange(shape[0]) % 2 == 0, shape)


class Embed(Layer):
    """The row of the weight for each index of the bottom, plus a bias.

    Blobs: weight (input_dim, num_output), and with `bias_term` bias (num_output). Caffe: layers/embed_layer.cpp.
    """

    constant: ClassVar[Mapping[int, str]] = {0: "indices"}

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.embed_param
        for field in ("num_output", "input_dim"):
            if getattr(param, field) < 1:
                raise self.refuse(f"has {field} {getattr(param, field)}: set 1 or more")
        self.blobs = [BlobSpec((param.input_dim, param.num_output), param.weight_filler)]
        if param.bias_term:
            self.blobs.append(BlobSpec((param.num_output,), param.bias_filler))
        return [(*bottoms[0], param.num_output)]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        words = blobs[0].shape[0]
        what = (
            f"has the index {{}}, outside of 0 to {words - 1}: set input_dim to the number of words"
        )
        top = functional.embedding(self.checked(bottoms[0].long(), words, what), blobs[0])
        return [top + blobs[1] if len(blobs) > 1 else top]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        words = graph.add("Cast", bottoms[0], to=7)
        top = graph.add("Gather", graph.blob(0), words)
        return [graph.add("Add", top, graph.blob(1)) if len(self.step.blobs) > 1 else top]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        weight, *bias = code.parameters()
        return [" + ".join([f"F.embedding({bottoms[0]}.long(), {weight})", *bias])]

    def draw(self, at: int, shape: Shape, rng: np.random.Generator) -> Array | None:
        return rng.integers(0, self.param.embed_param.input_dim, shape)


LAYERS: Final = (BatchReindex, Filter, Embed)
