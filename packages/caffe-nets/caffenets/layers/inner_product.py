"""InnerProduct: a matrix product over all axes from `axis` on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.torch_code import Code
from caffenets.layer import BlobSpec, Layer, Shape
from caffenets.layers.axes import canonical_axis, count
from caffenets.torch_later import Tensor, functional


class InnerProduct(Layer):
    """`top = bottom W' + b`; W is (outputs, inputs), or with `transpose` (inputs, outputs).

    Caffe: layers/inner_product_layer.cpp.

    With `keep` the weight gets no gradient: `keep` is called with the bottom and the gradient of the top, of `rows`
    rows each.
    """

    keep: Callable[[Tensor, Tensor], None] | None = None

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.inner_product_param
        (bottom,) = bottoms
        self._axis = canonical_axis(self, param.axis, bottom)
        outputs, inputs = param.num_output, count(bottom, self._axis)
        if outputs < 1:
            raise self.refuse("has num_output 0: use 1 or more")
        self.transposed = param.transpose
        shape = (inputs, outputs) if param.transpose else (outputs, inputs)
        self.blobs = [BlobSpec(shape, param.weight_filler)]
        self.rows = count(bottom, 0, self._axis)
        if param.bias_term:
            self.blobs.append(BlobSpec((outputs,), param.bias_filler))
        return [(*bottom[: self._axis], outputs)]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        weight = blobs[0].t() if self.transposed else blobs[0]
        bias = blobs[1] if len(blobs) > 1 else None
        bottom = bottoms[0].flatten(self._axis)
        if self.keep is None:
            return [functional.linear(bottom, weight, bias)]
        top = functional.linear(bottom, weight.detach(), bias)
        if not top.requires_grad:
            top.requires_grad_()
        top.register_hook(partial(self.keep, bottom.detach()))
        return [top]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        param, step = self.param.inner_product_param, self.step
        rows = bottoms[0]
        if self._axis != 1 or len(step.bottoms[0]) != 2:
            rows = graph.add("Flatten", rows, axis=self._axis)
        blobs = [graph.blob(index) for index in range(len(step.blobs))]
        top = graph.add("Gemm", rows, *blobs, transB=int(not param.transpose))
        return [top if self._axis == 1 else graph.reshaped(top, step.tops[0])]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        param, step = self.param.inner_product_param, self.step
        x = bottoms[0]
        if self._axis != len(step.bottoms[0]) - 1:
            x = f"{x}.flatten({self._axis})"
        if param.transpose:
            weight, *bias = code.parameters()
            return [" + ".join([f"{x} @ {weight}", *bias])]
        outputs, inputs = step.blobs[0]
        bias_too = "" if len(step.blobs) > 1 else ", bias=False"
        return [f"{code.part(f'nn.Linear({inputs}, {outputs}{bias_too})')}({x})"]


LAYERS: Final = (InnerProduct,)
