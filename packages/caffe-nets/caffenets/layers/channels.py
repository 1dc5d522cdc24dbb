"""Layers that reorder, scale or normalise channels: Permute, ShuffleChannel, Axpy, Normalize."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar, Final

from caffenets.layer import BlobSpec, Layer, Shape
from caffenets.layers.bottoms import wide
from caffenets.torch_later import Tensor


class Permute(Layer):
    """The axes in another order; those that `order` does not name follow in theirs. SSD's layers/permute_layer.cpp."""

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        axes, order = len(bottoms[0]), list(self.param.permute_param.order)
        if len(set(order)) != len(order) or any(axis >= axes for axis in order):
            raise self.refuse(
                f"has the order {order}: name each of its {axes} axes, 0 to {axes - 1}, at most once"
            )
        self._order = [*order, *(axis for axis in range(axes) if axis not in order)]
        return [tuple(bottoms[0][axis] for axis in self._order)]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [bottoms[0].permute(self._order)]


class ShuffleChannel(Layer):
    """Channel i of group g becomes channel g of group i.

    Zhang et al. 2017, arXiv:1707.01083; layers/shuffle_channel_layer.cpp of ShuffleNet's Caffe.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        group = self.param.shuffle_channel_param.group
        if len(bottoms[0]) < 2 or group < 1 or bottoms[0][1] % group:
            raise self.refuse(
                f"has group {group} for a bottom of {bottoms[0]}: use a divisor of its channels"
            )
        self._group = group
        return [bottoms[0]]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        groups = bottoms[0].unflatten(1, (self._group, -1))
        return [groups.transpose(1, 2).flatten(1, 2)]


class Axpy(Layer):
    """a x + y, where a has one value for each channel.

    Hu et al. 2017, arXiv:1709.01507; SENet's layers/axpy_layer.cpp.
    """

    bottoms: ClassVar[tuple[int, int | None]] = (3, 3)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        scale, first, second = bottoms
        if first != second or len(first) < 2 or scale[:2] != first[:2] or prod(scale[2:]) != 1:
            raise self.refuse(
                f"has bottoms of {scale}, {first} and {second}: the first needs one value for each channel, the others "
                "one shape"
            )
        return [first]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        scale, first, second = bottoms
        return [scale.reshape(*scale.shape[:2], *[1] * (first.dim() - 2)) * first + second]


class Normalize(Layer):
    """x over its norm across channels, or across all of an image, times a learned scale.

    Liu et al. 2015, arXiv:1506.04579; SSD's layers/normalize_layer.cpp.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.norm_param
        if len(bottoms[0]) < 2:
            raise self.refuse(
                f"needs a bottom with 2 axes or more, and has {bottoms[0]}: reshape it first"
            )
        filler = param.scale_filler
        if not param.HasField("scale_filler"):
            filler = type(filler)(type="constant", value=1.0)
        self.blobs = [BlobSpec(() if param.channel_shared else (bottoms[0][1],), filler)]
        return [bottoms[0]]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        param, bottom = self.param.norm_param, wide(bottoms[0])
        axes = list(range(1, bottom.dim())) if param.across_spatial else [1]
        norm = (bottom.square().sum(axes, keepdim=True) + param.eps).sqrt()
        scale = blobs[0]
        if scale.dim():
            scale = scale.reshape(1, -1, *[1] * (bottom.dim() - 2))
        return [bottom / norm * scale]


LAYERS: Final = (Permute, ShuffleChannel, Axpy, Normalize)
