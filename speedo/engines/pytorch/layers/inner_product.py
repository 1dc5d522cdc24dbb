"""InnerProduct: a matrix product over all axes from `axis` on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torch import Tensor
from torch.nn import functional

from speedo.engines.pytorch.layer import BlobSpec, Layer, Shape
from speedo.engines.pytorch.layers.axes import canonical_axis, count


class InnerProduct(Layer):
    """`top = bottom W' + b`; W is (outputs, inputs), or with `transpose` (inputs, outputs).

    Caffe: layers/inner_product_layer.cpp.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.inner_product_param
        (bottom,) = bottoms
        self._axis = canonical_axis(self, param.axis, bottom)
        outputs, inputs = param.num_output, count(bottom, self._axis)
        if outputs < 1:
            raise self.refuse("has num_output 0: use 1 or more")
        self._transposed = param.transpose
        shape = (inputs, outputs) if param.transpose else (outputs, inputs)
        self.blobs = [BlobSpec(shape, param.weight_filler)]
        if param.bias_term:
            self.blobs.append(BlobSpec((outputs,), param.bias_filler))
        return [(*bottom[: self._axis], outputs)]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        weight = blobs[0].t() if self._transposed else blobs[0]
        bias = blobs[1] if len(blobs) > 1 else None
        return [functional.linear(bottoms[0].flatten(self._axis), weight, bias)]


LAYERS: Final = (InnerProduct,)
