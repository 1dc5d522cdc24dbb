"""InnerProduct and Embed: products with a matrix, and its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from caffenets.export.layer_export import Array, LayerExport
from caffenets.export.onnx_graph import Graph
from caffenets.export.steps import Shape, axis_of
from caffenets.export.torch_code import Code


class InnerProduct(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        param, step = self.param.inner_product_param, self.step
        axis = axis_of(param.axis, step.bottoms[0])
        rows = bottoms[0]
        if axis != 1 or len(step.bottoms[0]) != 2:
            rows = graph.add("Flatten", rows, axis=axis)
        blobs = [graph.blob(index) for index in range(len(step.blobs))]
        top = graph.add("Gemm", rows, *blobs, transB=int(not param.transpose))
        return [top if axis == 1 else graph.reshaped(top, step.tops[0])]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        param, step = self.param.inner_product_param, self.step
        axis = axis_of(param.axis, step.bottoms[0])
        x = bottoms[0]
        if axis != len(step.bottoms[0]) - 1:
            x = f"{x}.flatten({axis})"
        if param.transpose:
            weight, *bias = code.parameters()
            return [" + ".join([f"{x} @ {weight}", *bias])]
        outputs, inputs = step.blobs[0]
        bias_too = "" if len(step.blobs) > 1 else ", bias=False"
        return [f"{code.part(f'nn.Linear({inputs}, {outputs}{bias_too})')}({x})"]


class Embed(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        words = graph.add("Cast", bottoms[0], to=7)
        top = graph.add("Gather", graph.blob(0), words)
        return [graph.add("Add", top, graph.blob(1)) if len(self.step.blobs) > 1 else top]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        weight, *bias = code.parameters()
        return [" + ".join([f"F.embedding({bottoms[0]}.long(), {weight})", *bias])]

    def draw(self, at: int, shape: Shape, rng: np.random.Generator) -> Array | None:
        return rng.integers(0, self.param.embed_param.input_dim, shape)


class Parameter(LayerExport):
    """A top that is the layer's blob."""

    @classmethod
    def names(cls, param: Any, count: int) -> tuple[str, ...]:
        return ("value",)

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [graph.blob(0)]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return code.parameters()


EXPORTS: Final = (InnerProduct, Embed, Parameter)
