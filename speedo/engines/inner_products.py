"""The inner products of a net of pycaffe: the factors of their weights' gradients (`speedo.exchange.factors`).

Caffe makes the gradient of a weight of N x K values from the top's gradient, of M x N, and the bottom, of M x K (Caffe:
layers/inner_product_layer.cpp, Backward_cpu). Both are still there after the layer's backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from speedo.exchange.factors import Factors, Matrix, Product


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a product's factors come from; `rows` of `product` are those of one batch."""

    product: Product
    bottom: Any
    top: Any
    transposed: bool


class InnerProducts:
    """Those of `net`, built from the NetParameter `parameter`, whose weights are at `places` of the vector, by layer.

    Left out are layers whose top is itself a loss, and weights that do not learn: they have no gradient.
    """

    def __init__(self, net: Any, parameter: Any, places: dict[int, slice]) -> None:
        layers = Counter(layer.name for layer in parameter.layer)
        params = {layer.name: layer for layer in parameter.layer if layers[layer.name] == 1}
        self._sources: dict[int, _Source] = {}
        for at, place in places.items():
            param = params.get(net._layer_names[at])
            if param is None or param.type != "InnerProduct" or any(param.loss_weight):
                continue
            if param.param and param.param[0].lr_mult == 0:
                continue
            bottom, top = (
                net._blobs[ids(at)[0]] for ids in (net._bottom_ids, net._top_ids)
            )  # fmt: skip
            options = param.inner_product_param
            inputs = (place.stop - place.start) // options.num_output
            left, right = options.num_output, inputs
            if options.transpose:
                left, right = right, left
            name = f"{param.name}/0"
            product = Product(name, place.start, left, right, bottom.count // inputs)
            self._sources[place.start] = _Source(product, bottom, top, options.transpose)

    def products(self, batches: int) -> tuple[Product, ...]:
        """With the rows of this many batches."""
        return tuple(
            replace(one.product, rows=batches * one.product.rows) for one in self._sources.values()
        )

    def clear(self, factors: Sequence[Factors]) -> None:
        """Before a backward pass: where none reaches a layer, its top's gradient is zero."""
        for one in factors:
            self._sources[one.product.start].top.diff[...] = 0.0

    def take(self, factors: Factors, batch: int, divisor: int) -> None:
        """Copy those of batch number `batch`; the gradient of the top is divided by `divisor`."""
        source = self._sources[factors.product.start]
        rows = slice(batch * source.product.rows, (batch + 1) * source.product.rows)
        left, right = factors.left[rows], factors.right[rows]
        top, bottom = (right, left) if source.transposed else (left, right)
        _rows_of(source.top.diff, top, divisor)
        _rows_of(source.bottom.data, bottom, 1)


def _rows_of(values: Matrix, out: Matrix, divisor: int) -> None:
    np.divide(values.reshape(out.shape), np.float32(divisor), out=out)
