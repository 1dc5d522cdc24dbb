"""Interp and Upsample: features of another height and width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.steps import constant
from caffenets.forms.torch_code import Code
from caffenets.layer import Array, Layer, Shape
from caffenets.torch_later import Tensor, functional


class _Image(Layer):
    """A layer whose bottoms are (num, channels, height, width)."""

    bottoms: ClassVar[tuple[int, int | None]] = (1, 2)

    def check_image(self, bottom: Shape) -> None:
        """Raises `EngineError` where the bottom is none."""
        if len(bottom) != 4:
            raise self.refuse(
                f"needs a bottom of (num, channels, height, width), and has {bottom}: reshape it first"
            )


class Interp(_Image):
    """Bilinear, with the corners of the bottom at those of the top; the size is given, or that of a second bottom.

    `shrink_factor` is applied before `zoom_factor`. Negative `pad_beg` and `pad_end` cut the bottom first. Chen et al.
    2016, arXiv:1606.00915; DeepLab's and PSPNet's Caffe, layers/interp_layer.cpp.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        self.check_image(bottoms[0])
        self._top_of(bottoms[0], bottoms[1] if len(bottoms) > 1 else None)
        return [
            (*bottoms[0][:2], *self._top_of(bottoms[0], bottoms[1] if len(bottoms) > 1 else None))
        ]

    def _top_of(self, bottom: Shape, like: Shape | None) -> tuple[int, int]:
        param = self.param.interp_param
        if max(param.pad_beg, param.pad_end) > 0:
            raise self.refuse("has pad_beg or pad_end above 0: they can only cut, use 0 or less")
        cut = [extent + param.pad_beg + param.pad_end for extent in bottom[2:]]
        if min(cut) < 1:
            raise self.refuse(
                f"cuts all of its bottom {bottom[2:]}: use pad_beg and pad_end nearer to 0"
            )
        if like is not None:
            self.check_image(like)
            return like[2], like[3]
        given = param.HasField("height") and param.HasField("width")
        zooms = param.HasField("zoom_factor") or param.HasField("shrink_factor")
        if given == zooms:
            raise self.refuse(
                "needs height and width, or zoom_factor or shrink_factor, or a second bottom: give one"
            )
        if given:
            size = [param.height, param.width]
        else:
            if min(param.zoom_factor, param.shrink_factor) < 1:
                raise self.refuse("has a zoom_factor or shrink_factor below 1: use 1 or more")
            size = [(extent - 1) // param.shrink_factor + 1 for extent in cut]
            size = [extent + (extent - 1) * (param.zoom_factor - 1) for extent in size]
        if min(size) < 1:
            raise self.refuse(f"has a top of {size}: use 1 or more")
        return size[0], size[1]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        param, bottom = self.param.interp_param, bottoms[0]
        like = tuple(bottoms[1].shape) if len(bottoms) > 1 else None
        size = self._top_of(tuple(bottom.shape), like)
        if param.pad_beg or param.pad_end:
            first, last = -param.pad_beg, param.pad_end or None
            bottom = bottom[:, :, first:last, first:last]
        return [functional.interpolate(bottom, size, mode="bilinear", align_corners=True)]

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

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        x, param = bottoms[0], self.param.interp_param
        if param.pad_beg or param.pad_end:
            cut = f"{-param.pad_beg or ''}:{param.pad_end or ''}"
            x = f"{x}[:, :, {cut}, {cut}]"
        size = constant(self.step.tops[0][2:], "sizes")
        return [f'F.interpolate({x}, {size}, mode="bilinear", align_corners=True)']


class Upsample(_Image):
    """Each value put where a Pooling layer took it from, and 0 elsewhere; without a second bottom each is repeated.

    The second bottom is the second top of that layer: places in height * width. Badrinarayanan et al. 2015,
    arXiv:1511.00561; SegNet's Caffe, layers/upsample_layer.cpp. The form with one bottom is that of the Caffes with
    YOLOv3's layers.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        self.check_image(bottoms[0])
        if len(bottoms) > 1 and bottoms[0] != bottoms[1]:
            raise self.refuse(
                f"has values of {bottoms[0]} and places of {bottoms[1]}: give the second top of the Pooling layer"
            )
        return [(*bottoms[0][:2], *self._top_of(bottoms[0], len(bottoms)))]

    def _top_of(self, bottom: Shape, bottoms: int) -> tuple[int, int]:
        param = self.param.upsample_param
        if param.HasField("upsample_h") and param.HasField("upsample_w") and bottoms == 2:
            return param.upsample_h, param.upsample_w
        if param.HasField("scale_h") != param.HasField("scale_w"):
            raise self.refuse("has only one of scale_h and scale_w: give both")
        pair = param.HasField("scale_h")
        scales = (param.scale_h, param.scale_w) if pair else (param.scale, param.scale)
        if min(scales) < 1:
            raise self.refuse(f"has a scale of {scales}: use 1 or more")
        cut = (param.pad_out_h, param.pad_out_w) if bottoms == 2 else (False, False)
        if any(out and scale != 2 for out, scale in zip(cut, scales, strict=True)):
            raise self.refuse(
                "has pad_out_h or pad_out_w with a scale other than 2: give upsample_h and upsample_w"
            )
        return bottom[2] * scales[0] - cut[0], bottom[3] * scales[1] - cut[1]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        values = bottoms[0]
        height, width = self._top_of(tuple(values.shape), len(bottoms))
        if len(bottoms) == 1:
            return [functional.interpolate(values, (height, width), mode="nearest")]
        places = self.checked(
            bottoms[1].detach().long().flatten(2),
            height * width,
            f"read the place {{}}, and its top has {height} x {width}: give the upsample_h and upsample_w of the "
            "Pooling layer's bottom",
        )
        top = values.new_zeros(*values.shape[:2], height * width)
        return [top.scatter(2, places, values.flatten(2)).unflatten(2, (height, width))]

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

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
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


LAYERS: Final = (Interp, Upsample)
