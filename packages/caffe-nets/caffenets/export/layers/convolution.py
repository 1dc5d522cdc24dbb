"""Convolution and Deconvolution; Im2col has no equal in ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from caffenets.export.layer_export import LayerExport
from caffenets.export.onnx_graph import Graph
from caffenets.export.steps import NoEqual, Shape, axis_of, constant, per_axis
from caffenets.export.torch_code import Code, arguments, pair


class _Windows(LayerExport):
    """The options of windows, and the sizes that they slide over."""

    def read(self) -> None:
        param, bottom = self.param.convolution_param, self.step.bottoms[0]
        if axis_of(param.axis, bottom) != 1 or not 3 <= len(bottom) <= 5:
            raise NoEqual(
                "takes (batch, channels) and 1 to 3 spatial axes only when it is exported"
            )
        self.sizes: Shape = constant(bottom[2:], "spatial sizes")
        axes = len(self.sizes)
        self.kernel = per_axis(param, "kernel_size", "kernel", axes, 1)
        self.stride = per_axis(param, "stride", "stride", axes, 1)
        self.pad = per_axis(param, "pad", "pad", axes, 0)
        self.dilation = per_axis(param, "dilation", None, axes, 1)
        self.group = int(param.group)
        # Caffe counts a window that is somewhat larger than the padded bottom.
        self.beyond = tuple(
            max(0, d * (k - 1) + 1 - size - 2 * p)
            for size, k, p, d in zip(self.sizes, self.kernel, self.pad, self.dilation, strict=True)
        )

    def padded(self, x: str) -> str:
        """The expression for `x` with zeros where a window reaches beyond it."""
        if not any(self.beyond):
            return x
        sides = [side for size in reversed(self.beyond) for side in (0, size)]
        return f"F.pad({x}, {sides})"


class Convolution(_Windows):
    kind, op = "Conv", "Conv"

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        self.read()
        blobs = [graph.blob(index) for index in range(len(self.step.blobs))]
        ends = [p + b for p, b in zip(self.pad, self.beyond, strict=True)]
        return [
            graph.add(
                self.op,
                bottom,
                *blobs,
                kernel_shape=self.kernel,
                strides=self.stride,
                pads=[*self.pad, *ends],
                dilations=self.dilation,
                group=self.group,
            )
            for bottom in bottoms
        ]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        self.read()
        channels, outputs = self.step.bottoms[0][1], self.step.tops[0][1]
        given = arguments(
            channels, outputs, pair(self.kernel),
            stride=(pair(self.stride), "1"), padding=(pair(self.pad), "0"),
            dilation=(pair(self.dilation), "1"), groups=(self.group, 1),
            bias=(len(self.step.blobs) > 1, True),
        )  # fmt: skip
        part = code.part(f"nn.{self.kind}{len(self.sizes)}d({given})")
        return [f"{part}({self.padded(bottom)})" for bottom in bottoms]


class Deconvolution(Convolution):
    kind, op = "ConvTranspose", "ConvTranspose"

    def read(self) -> None:
        super().read()
        self.beyond = (0,) * len(self.sizes)


class Im2col(_Windows):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        raise NoEqual("has no equal in ONNX")

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        self.read()
        if len(self.sizes) != 2:
            raise NoEqual("has an equal in PyTorch for 2 spatial axes only")
        columns = f"F.unfold({self.padded(bottoms[0])}, {self.kernel}, {self.dilation}, {self.pad}, {self.stride})"
        height, width = self.step.tops[0][2:]
        return [f"{columns}.unflatten(2, ({height}, {width}))"]


EXPORTS: Final = (Convolution, Deconvolution, Im2col)
