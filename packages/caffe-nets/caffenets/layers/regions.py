"""ROIPooling and PSROIPooling: a grid of values for each region of an image.

A region is (image, xmin, ymin, xmax, ymax), in pixels of the net's input; it gets no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.torch_code import Code, number
from caffenets.layer import Array, Layer, Shape
from caffenets.layers.axes import count
from caffenets.torch_later import Tensor, torch


class _Regions(Layer):
    """A layer with the features of images and regions in them."""

    bottoms: ClassVar[tuple[int, int | None]] = (2, 2)

    def check_bottoms(self, bottoms: Sequence[Shape]) -> None:
        """Raises `EngineError` where they are no features and regions."""
        features, regions = bottoms
        if len(features) != 4:
            raise self.refuse(
                f"needs features of (num, channels, height, width), and has {features}: reshape them first"
            )
        if not regions or count(regions, 1) != 5:
            raise self.refuse(
                f"needs regions of 5 values (image, xmin, ymin, xmax, ymax), and has {regions}: correct its "
                "second bottom"
            )

    def images(self, regions: Tensor, number: int) -> Tensor:
        """The image of each region."""
        return self.checked(
            regions[:, 0].long(),
            number,
            f"read a region of image {{}}, and its bottom has {number}: correct the regions",
        )


def _bounds(
    start: Tensor, size: Tensor, offset: Tensor | float, bins: int, extent: int
) -> tuple[Tensor, Tensor]:
    """Where each bin of each region begins and ends on an axis, (regions, bins), cut to its extent."""
    steps = torch.arange(bins, device=start.device, dtype=start.dtype)
    first = (steps * size[:, None] + start[:, None]).floor() + offset
    last = ((steps + 1) * size[:, None] + start[:, None]).ceil() + offset
    return first.clamp(0, extent), last.clamp(0, extent)


def _rounded(values: Tensor) -> Tensor:
    """As C's round: halves away from 0."""
    return values.sign() * (values.abs() + 0.5).floor()


_ROI_POOLING: Final = '''
def roi_pooling(features, regions, bins, scale):
    """The largest value in each of `bins` parts of a region (image, xmin, ymin, xmax, ymax); 0 of an empty one."""
    tops = []
    for image, *corners in regions.reshape(-1, 5).tolist():
        x1, y1, x2, y2 = (int(abs(one * scale) + 0.5) * (1 if one >= 0 else -1) for one in corners)
        top = features.new_zeros(features.shape[1], *bins)
        for i in range(bins[0]):
            for j in range(bins[1]):
                tall, wide = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
                rows = y1 + i * tall // bins[0], y1 - -((i + 1) * tall) // bins[0]
                columns = x1 + j * wide // bins[1], x1 - -((j + 1) * wide) // bins[1]
                (y, y_end), (x, x_end) = ([max(0, one) for one in ends] for ends in (rows, columns))
                part = features[int(image), :, y:y_end, x:x_end]
                if part.numel():
                    top[:, i, j] = part.amax((1, 2))
        tops.append(top)
    return torch.stack(tops)
'''


class ROIPooling(_Regions):
    """The largest value in each of pooled_h x pooled_w parts of a region; 0 of an empty one.

    Girshick 2015, arXiv:1504.08083; Fast R-CNN's Caffe, layers/roi_pooling_layer.cu.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.roi_pooling_param
        self.check_bottoms(bottoms)
        self._bins = param.pooled_h, param.pooled_w
        if min(self._bins) < 1:
            raise self.refuse(f"has pooled_h and pooled_w {self._bins}: use 1 or more")
        return [(bottoms[1][0], bottoms[0][1], *self._bins)]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        features, regions = bottoms[0], bottoms[1].detach().float().reshape(-1, 5)
        images = self.images(regions, len(features))
        corners = _rounded(regions[:, 1:] * self.param.roi_pooling_param.spatial_scale)
        bounds = []
        for axis, bins, extent in zip((1, 0), self._bins, features.shape[2:], strict=True):
            start = corners[:, axis]
            size = (corners[:, axis + 2] - start + 1).clamp(min=1) / bins
            first, last = _bounds(torch.zeros_like(start), size, start[:, None], bins, extent)
            bounds.append(torch.stack([first, last], -1).int().tolist())
        tops = [
            _largest(_largest(features[image], 2, columns), 1, rows)
            for image, rows, columns in zip(images.tolist(), *bounds, strict=True)
        ]
        empty = features.new_zeros(0, features.shape[1], *self._bins)
        return [torch.stack(tops) if tops else empty]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        regions = graph.add("Reshape", bottoms[1], graph.integers(-1, 5))
        param = self.param.roi_pooling_param
        scale = float(param.spatial_scale)
        return [
            graph.add(
                "MaxRoiPool", bottoms[0], regions, pooled_shape=self._bins, spatial_scale=scale
            )
        ]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        code.helper(_ROI_POOLING)
        param = self.param.roi_pooling_param
        return [
            f"roi_pooling({bottoms[0]}, {bottoms[1]}, {self._bins}, {number(param.spatial_scale)})"
        ]

    def draw(self, at: int, shape: Shape, rng: np.random.Generator) -> Array | None:
        """Regions of the first image, in the pixels of the net's input."""
        if at != 1:
            return None
        side = 4 / self.param.roi_pooling_param.spatial_scale
        begin = rng.integers(0, side, (shape[0], 2))
        end = begin + rng.integers(0, side, (shape[0], 2))
        found = np.concatenate([np.zeros((shape[0], 1)), begin, end], 1)
        return np.reshape(found, shape)


def _largest(values: Tensor, axis: int, bins: Sequence[Sequence[int]]) -> Tensor:
    """The largest along an axis in each bin from a first place to before a last one; the first one of equals."""
    none = values.new_zeros(values.select(axis, 0).shape)
    found = [
        values.narrow(axis, first, last - first).max(axis).values if last > first else none
        for first, last in bins
    ]
    return torch.stack(found, axis)


class PSROIPooling(_Regions):
    """The mean of each of group_size x group_size parts of a region, each part from channels of its own.

    Dai et al. 2016, arXiv:1605.06409; R-FCN's Caffe, layers/psroi_pooling_layer.cu.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.psroi_pooling_param
        self.check_bottoms(bottoms)
        if param.output_dim < 1 or param.group_size < 1:
            raise self.refuse(
                f"has output_dim {param.output_dim} and group_size {param.group_size}: use 1 or more"
            )
        wanted = param.output_dim * param.group_size**2
        if bottoms[0][1] != wanted:
            raise self.refuse(
                f"has {bottoms[0][1]} channels, and output_dim x group_size x group_size is {wanted}: make both equal"
            )
        return [(bottoms[1][0], param.output_dim, param.group_size, param.group_size)]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        param, bins = self.param.psroi_pooling_param, self.param.psroi_pooling_param.group_size
        features, regions = bottoms[0], bottoms[1].detach().float().reshape(-1, 5)
        number, _, height, width = features.shape
        images = self.images(regions, number)
        corners = _rounded(regions[:, 1:])
        start = corners[:, :2] * param.spatial_scale
        size = ((corners[:, 2:] + 1) * param.spatial_scale - start).clamp(min=0.1) / bins
        rows, columns = (
            _covered(*_bounds(start[:, axis], size[:, axis], 0.0, bins, extent), extent)
            for axis, extent in ((1, height), (0, width))
        )
        rows, columns = rows.to(features.dtype), columns.to(features.dtype)
        maps = features.reshape(number, param.output_dim, bins, bins, height, width)[images]
        sums = torch.einsum("rcijhw,rih,rjw->rcij", maps, rows, columns)
        places = rows.sum(2)[:, :, None] * columns.sum(2)[:, None]
        return [sums / places.clamp(min=1)[:, None]]


def _covered(first: Tensor, last: Tensor, extent: int) -> Tensor:
    """(regions, bins, extent): 1 for the places from `first` to before `last`, else 0."""
    places = torch.arange(extent, device=first.device, dtype=first.dtype)
    return ((places >= first[..., None]) & (places < last[..., None])).to(first.dtype)


LAYERS: Final = (ROIPooling, PSROIPooling)
