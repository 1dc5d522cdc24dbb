"""Layers that compute each element by itself."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from speedo.engines.pytorch.layer import Layer, Shape


class Elementwise(Layer):
    """A layer with one bottom and one top of the same shape, and no blobs."""

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        return [bottoms[0]]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [self.apply(bottoms[0])]

    def apply(self, bottom: Tensor) -> Tensor:
        """The top."""
        raise NotImplementedError


class ReLU(Elementwise):
    """max(x, 0) + negative_slope min(x, 0); the gradient at 0 is negative_slope's. Caffe: layers/relu_layer.cpp."""

    def apply(self, bottom: Tensor) -> Tensor:
        slope = self.param.relu_param.negative_slope
        return functional.leaky_relu(bottom, slope) if slope else functional.relu(bottom)
