"""Layers of other Caffes than BVLC's, which only the PyTorch engine has (docs/layers.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from caffenets.export.layer_export import Array, LayerExport
from caffenets.export.layers.activation import Elementwise
from caffenets.export.layers.convolution import Convolution
from caffenets.export.onnx_graph import Graph
from caffenets.export.steps import Dims, NoEqual, Shape, constant
from caffenets.export.torch_code import Code, listed

_LEAVE_OUT: Final = "has no equal: leave the layer out of the net, so that its bottoms are outputs"
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


class ReLU6(Elementwise):
    def nodes(self, graph: Graph, x: str) -> str:
        slope = float(self.param.relu6_param.negative_slope)
        if not slope:
            return graph.add("Clip", x, graph.constant(0.0), graph.constant(6.0))
        return graph.add("Clip", graph.add("LeakyRelu", x, alpha=slope), "", graph.constant(6.0))

    def expression(self, x: str) -> str:
        slope = np.float32(self.param.relu6_param.negative_slope)
        return f"F.leaky_relu({x}, {slope}).clamp(max=6)" if slope else f"F.relu6({x})"


class DepthwiseConvolution(Convolution):
    def read(self) -> None:
        super().read()
        (self.group,) = constant(self.step.bottoms[0][1:2], "channels")


class ConvolutionDepthwise(DepthwiseConvolution):
    pass


class Permute(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [graph.add("Transpose", bottoms[0], perm=self._order())]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [f"{bottoms[0]}.permute({listed(self._order())})"]

    def _order(self) -> list[int]:
        order = list(self.param.permute_param.order)
        return [*order, *(a for a in range(len(self.step.bottoms[0])) if a not in order)]


class ShuffleChannel(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        top = self.step.tops[0]
        group, channels = (
            int(self.param.shuffle_channel_param.group),
            constant(top[1:2], "channels"),
        )
        apart: Dims = (top[0], group, channels[0] // group, *top[2:])
        order = [0, 2, 1, *range(3, len(apart))]
        turned = graph.add("Transpose", graph.reshaped(bottoms[0], apart), perm=order)
        return [graph.reshaped(turned, top)]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        group = self.param.shuffle_channel_param.group
        return [f"{bottoms[0]}.unflatten(1, ({group}, -1)).transpose(1, 2).flatten(1, 2)"]


class Axpy(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        scale, x, y = bottoms
        behind = len(self.step.tops[0]) - 2
        shape = graph.integers(0, 0, *[1] * behind)
        return [graph.add("Add", graph.add("Mul", graph.add("Reshape", scale, shape), x), y)]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        scale, x, y = bottoms
        ones = ", 1" * (len(self.step.tops[0]) - 2)
        return [f"{scale}.reshape(*{scale}.shape[:2]{ones}) * {x} + {y}"]


class Normalize(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        x, param = bottoms[0], self.param.norm_param
        axes = graph.integers(*self._axes())
        total = graph.add("ReduceSum", graph.add("Mul", x, x), axes)
        norm = graph.add("Sqrt", graph.add("Add", total, graph.constant(param.eps)))
        shape = self.step.blobs[0]
        behind = (1,) * (len(self.step.bottoms[0]) - 2) if shape else ()
        return [graph.add("Mul", graph.add("Div", x, norm), graph.blob(0, (*shape, *behind)))]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        (scale,) = code.parameters()
        x, axes = bottoms[0], tuple(self._axes())
        norm = f"({x}.square().sum({axes}, keepdim=True) + {np.float32(self.param.norm_param.eps)}).sqrt()"
        if self.step.blobs[0]:
            scale = f"{scale}.reshape(-1{', 1' * (len(self.step.bottoms[0]) - 2)})"
        return [f"{x} / {norm} * {scale}"]

    def _axes(self) -> list[int]:
        whole = self.param.norm_param.across_spatial
        return list(range(1, len(self.step.bottoms[0]))) if whole else [1]


class Interp(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        x, param = bottoms[0], self.param.interp_param
        if param.pad_beg or param.pad_end:
            first, last = -param.pad_beg, param.pad_end or 2**31
            axes = graph.integers(2, 3)
            x = graph.add(
                "Slice", x, graph.integers(first, first), graph.integers(last, last), axes
            )
        sizes = [graph.integers(*constant(self.step.tops[0][2:], "sizes"))]
        begin = graph.add("Slice", graph.add("Shape", x), graph.integers(0), graph.integers(2))
        whole = graph.add("Concat", begin, *sizes, axis=0)
        return [
            graph.add(
                "Resize", x, "", "", whole,
                mode="linear", coordinate_transformation_mode="align_corners",
            )
        ]  # fmt: skip

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        x, param = bottoms[0], self.param.interp_param
        if param.pad_beg or param.pad_end:
            cut = f"{-param.pad_beg or ''}:{param.pad_end or ''}"
            x = f"{x}[:, :, {cut}, {cut}]"
        size = constant(self.step.tops[0][2:], "sizes")
        return [f'F.interpolate({x}, {size}, mode="bilinear", align_corners=True)']


class Upsample(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        height, width = constant(self.step.tops[0][2:], "sizes")
        if len(bottoms) == 1:
            old = constant(self.step.bottoms[0][2:], "sizes")
            scales = graph.constant([1, 1, height / old[0], width / old[1]])
            given = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            return [graph.add("Resize", bottoms[0], "", scales, mode="nearest", **given)]
        rows = graph.integers(0, 0, -1)
        values = graph.add("Reshape", bottoms[0], rows)
        places = graph.add("Cast", graph.add("Reshape", bottoms[1], rows), to=7)
        begin = graph.add(
            "Slice", graph.add("Shape", bottoms[0]), graph.integers(0), graph.integers(2)
        )
        whole = graph.add("Concat", begin, graph.integers(height * width), axis=0)
        zeros = graph.add("Expand", graph.constant(0.0), whole)
        top = graph.add("ScatterElements", zeros, places, values, axis=2)
        return [graph.add("Reshape", top, graph.integers(0, 0, height, width))]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        size = constant(self.step.tops[0][2:], "sizes")
        x = bottoms[0]
        if len(bottoms) == 1:
            return [f'F.interpolate({x}, {size}, mode="nearest")']
        zeros = f"{x}.new_zeros(*{x}.shape[:2], {size[0] * size[1]})"
        places = f"{bottoms[1]}.long().flatten(2)"
        return [f"{zeros}.scatter(2, {places}, {x}.flatten(2)).unflatten(2, {size})"]

    def draw(self, at: int, shape: Shape, rng: np.random.Generator) -> Array | None:
        if at != 1:
            return None
        return np.broadcast_to(np.arange(shape[2] * shape[3]).reshape(shape[2:]), shape)


class ROIPooling(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        regions = graph.add("Reshape", bottoms[1], graph.integers(-1, 5))
        param = self.param.roi_pooling_param
        bins, scale = [param.pooled_h, param.pooled_w], float(param.spatial_scale)
        return [
            graph.add("MaxRoiPool", bottoms[0], regions, pooled_shape=bins, spatial_scale=scale)
        ]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        code.helper(_ROI_POOLING)
        param = self.param.roi_pooling_param
        bins = f"({param.pooled_h}, {param.pooled_w})"
        return [
            f"roi_pooling({bottoms[0]}, {bottoms[1]}, {bins}, {np.float32(param.spatial_scale)})"
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


class PriorBox(LayerExport):
    """The engine's own boxes, which depend on shapes alone."""

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [graph.constant(self.step.value)]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        raise NoEqual(
            "has its boxes in no state dict: use --onnx, or leave the layer out of the net"
        )


class _Search(LayerExport):
    """A search for boxes, whose number is that of what it finds."""

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        raise NoEqual(_LEAVE_OUT)

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        raise NoEqual(_LEAVE_OUT)


class Proposal(_Search):
    pass


class PSROIPooling(_Search):
    pass


EXPORTS: Final = (
    ReLU6,
    DepthwiseConvolution,
    ConvolutionDepthwise,
    Permute,
    ShuffleChannel,
    Axpy,
    Normalize,
    Interp,
    Upsample,
    ROIPooling,
    PriorBox,
    Proposal,
    PSROIPooling,
)
