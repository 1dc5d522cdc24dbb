"""Convolution, Deconvolution and Im2col over any number of spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Final

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.steps import NoEqual, constant
from caffenets.forms.torch_code import Code, arguments, pair
from caffenets.host_program import caffe_itself
from caffenets.layer import BlobSpec, Layer, Shape, host_waits
from caffenets.layers.axes import canonical_axis
from caffenets.torch_later import Tensor, functional

_CONVOLUTIONS: Final = ("conv1d", "conv2d", "conv3d")
_TRANSPOSED: Final = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_NARROW: Final = 16  # floats that a CPU's widest register holds


class _Windowed(Layer):
    """Reads a ConvolutionParameter: `axis` is the channels', those after it are spatial, those before it a batch."""

    def read(self, bottom: Shape) -> None:
        """Sets the sizes of the windows. Raises `EngineError` for what Caffe refuses."""
        param = self.param.convolution_param
        self._axis = canonical_axis(self, param.axis, bottom)
        self._channels, self._spatial = bottom[self._axis], bottom[self._axis + 1 :]
        self._kernel = self._sizes("kernel_size", "kernel", least=1)
        self._stride = self._sizes("stride", "stride", default=1, least=1)
        self._pad = self._sizes("pad", "pad", default=0, least=0)
        self._dilation = self._sizes("dilation", None, default=1, least=1)
        self._beyond = [0] * (2 * len(self._spatial))
        self._extent = tuple(
            dilation * (kernel - 1) + 1
            for kernel, dilation in zip(self._kernel, self._dilation, strict=True)
        )

    def _sizes(
        self, repeated: str, pair: str | None, *, default: int | None = None, least: int
    ) -> tuple[int, ...]:
        """An option's value for each spatial axis."""
        param, axes = self.param.convolution_param, len(self._spatial)
        given = list(getattr(param, repeated))
        if pair and (param.HasField(f"{pair}_h") or param.HasField(f"{pair}_w")):
            if given or axes != 2:
                raise self.refuse(
                    f"has {pair}_h or {pair}_w, which are for 2 spatial axes and stand without {repeated}: "
                    f"use {repeated}"
                )
            given = [getattr(param, f"{pair}_h"), getattr(param, f"{pair}_w")]
        elif not given and default is not None:
            given = [default]
        if len(given) not in (1, axes):
            raise self.refuse(
                f"has {repeated} {len(given)} times, but its bottom has {axes} spatial axes: "
                f"give {repeated} once, or once per spatial axis"
            )
        sizes = tuple(given if len(given) == axes else given * axes)
        if any(size < least for size in sizes):
            raise self.refuse(f"has {repeated} {min(sizes)}: use {least} or more")
        return sizes

    def convolved(self) -> tuple[int, ...]:
        """The spatial sizes of a convolution's top; sets how far windows reach beyond the padded bottom."""
        beyond, sizes = [], []
        for size, extent, stride, pad in zip(
            self._spatial, self._extent, self._stride, self._pad, strict=True
        ):
            room = size + 2 * pad - extent
            # Caffe's quotient is rounded towards 0: a window somewhat larger than the padded bottom counts once.
            sizes.append(int(room / stride) + 1)
            beyond.append(max(0, -room))
        if any(size < 1 for size in sizes):
            raise self.refuse(
                f"has a kernel of {self._extent}, larger than its padded bottom {self._spatial}: "
                "use a smaller kernel or more pad"
            )
        self._beyond = [side for size in reversed(beyond) for side in (0, size)]
        return tuple(sizes)

    def with_batch(self, bottom: Tensor) -> Tensor:
        """`bottom` with all axes before the channels' as one."""
        return bottom if self._axis == 1 else bottom.reshape(-1, *bottom.shape[self._axis :])

    def columns(self, bottom: Tensor) -> Tensor:
        """(N, channels, spatial...) as (N, channels * kernel, windows...)."""
        axes = len(self._kernel)
        sides = [side for pad in reversed(self._pad) for side in (pad, pad)]
        windows = functional.pad(bottom, [a + b for a, b in zip(sides, self._beyond, strict=True)])
        for axis in range(axes):
            windows = windows.unfold(2 + axis, self._extent[axis], self._stride[axis])
            windows = windows[..., :: self._dilation[axis]]
        order = [0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes)]
        windows = windows.permute(order)
        return windows.reshape(windows.shape[0], -1, *windows.shape[2 + axes :])

    def check_exported(self) -> None:
        """Raises `NoEqual` for what no form has."""
        if self._axis != 1 or not 1 <= len(self._spatial) <= 3:
            raise NoEqual(
                "takes (batch, channels) and 1 to 3 spatial axes only when it is exported"
            )
        constant(self.step.bottoms[0][1:], "channels and spatial sizes")

    def padded(self, x: str) -> str:
        """The expression for `x` with zeros where a window reaches beyond it."""
        return f"F.pad({x}, {self._beyond})" if any(self._beyond) else x


class _Filters(_Windowed):
    """A layer of filters: several bottoms of one shape, each with its top, and one weight and bias for all."""

    op: ClassVar[str]  # in ONNX, and the class in PyTorch

    bottoms: ClassVar[tuple[int, int | None]] = (1, None)
    tops: ClassVar[tuple[int, int | None]] = (1, None)

    def read_filters(self, bottoms: Sequence[Shape]) -> None:
        """Sets the groups, and checks that the bottoms are alike."""
        param = self.param.convolution_param
        self.read(bottoms[0])
        self._outputs, self._group = param.num_output, param.group
        if any(bottom != bottoms[0] for bottom in bottoms):
            raise self.refuse(
                f"has bottoms of different shapes {list(bottoms)}: use one layer for each"
            )
        if len(self.param.top) != len(bottoms):
            raise self.refuse(
                f"has {len(bottoms)} bottoms and {len(self.param.top)} tops: use as many"
            )
        if self._outputs < 1:
            raise self.refuse("has num_output 0: use 1 or more")
        if self._group < 1 or self._channels % self._group or self._outputs % self._group:
            raise self.refuse(
                f"has group {self._group}, which does not divide both its {self._channels} channels and its "
                f"num_output {self._outputs}: use a common divisor"
            )

    def declare(self, weight: Shape) -> None:
        """Declares the blobs: `weight` without and with the kernel's axes, and the bias."""
        param = self.param.convolution_param
        self.blobs = [BlobSpec((*weight, *self._kernel), param.weight_filler)]
        if param.bias_term:
            self.blobs.append(BlobSpec((self._outputs,), param.bias_filler))

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        weight, bias = blobs[0], blobs[1] if len(blobs) > 1 else None
        tops = []
        for bottom in bottoms:
            top = self.filtered(self.with_batch(bottom), weight, bias)
            if self._axis != 1:
                top = top.reshape(*bottom.shape[: self._axis], *top.shape[1:])
            tops.append(top)
        return tops

    def filtered(self, bottom: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The top of one bottom of (N, channels, spatial...)."""
        raise NotImplementedError

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        self.check_exported()
        blobs = [graph.blob(index) for index in range(len(self.step.blobs))]
        ends = [p + b for p, b in zip(self._pad, self._beyond[-1::-2], strict=True)]
        return [
            graph.add(
                self.op,
                bottom,
                *blobs,
                kernel_shape=self._kernel,
                strides=self._stride,
                pads=[*self._pad, *ends],
                dilations=self._dilation,
                group=self._group,
            )
            for bottom in bottoms
        ]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        self.check_exported()
        channels, outputs = self.step.bottoms[0][1], self.step.tops[0][1]
        given = arguments(
            channels, outputs, pair(self._kernel),
            stride=(pair(self._stride), "1"), padding=(pair(self._pad), "0"),
            dilation=(pair(self._dilation), "1"), groups=(self._group, 1),
            bias=(len(self.step.blobs) > 1, True),
        )  # fmt: skip
        part = code.part(f"nn.{self.op}{len(self._spatial)}d({given})")
        return [f"{part}({self.padded(bottom)})" for bottom in bottoms]


class Convolution(_Filters):
    """Weights (outputs, channels / group, kernel...), bias (outputs).

    Caffe: layers/base_conv_layer.cpp, conv_layer.cpp.
    """

    op = "Conv"

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        self.read_filters(bottoms)
        self.declare((self._outputs, self._channels // self._group))
        top = (*bottoms[0][: self._axis], self._outputs, *self.convolved())
        return [top] * len(bottoms)

    def filtered(self, bottom: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        axes = len(self._spatial)
        if axes == 0:
            return functional.conv1d(
                bottom[..., None], weight[..., None], bias, groups=self._group
            )[..., 0]
        if axes > len(_CONVOLUTIONS):
            return self._by_columns(bottom, weight, bias)
        if any(self._beyond):
            bottom = functional.pad(bottom, [*self._beyond])
        stride = self._stride
        if self._only_skips and host_waits(bottom.device):
            kept: Any = (..., *(slice(None, None, step) for step in stride))
            bottom = bottom[kept]
            stride = (1,) * axes
        top: Tensor = getattr(functional, _CONVOLUTIONS[axes - 1])(
            bottom, weight, bias, stride, self._pad, self._dilation, self._group
        )
        return top

    @property
    def _only_skips(self) -> bool:
        """Whether its windows are single values of a narrow bottom, some of which its stride leaves out.

        PyTorch 2.13 writes outside of its memory in the backward pass of such a layer on a CPU, in the order of memory
        that ends with the channels: where the bottom's extents are multiples of the stride, and there are some 24 x 24
        windows (docs/engines.md). Reading the values first costs half of what the other order of memory does; with more
        channels, where nothing is wrong, it would cost up to two thirds of the layer.
        """
        single = all(kernel == 1 for kernel in self._kernel) and not any(self._pad)
        return single and self._channels < _NARROW and any(step > 1 for step in self._stride)

    def _by_columns(self, bottom: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        columns, groups = self.columns(bottom), self._group
        inside = weight[0].numel()
        top = weight.reshape(groups, -1, inside) @ columns.reshape(len(columns), groups, inside, -1)
        top = top.reshape(len(columns), self._outputs, *columns.shape[2:])
        return top if bias is None else top + bias.reshape(-1, *(1,) * len(self._spatial))


class Deconvolution(_Filters):
    """Weights (channels, outputs / group, kernel...), bias (outputs). Caffe: layers/deconv_layer.cpp."""

    op = "ConvTranspose"

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        self.read_filters(bottoms)
        if len(self._spatial) > len(_TRANSPOSED):
            raise self.refuse(
                f"has {len(self._spatial)} spatial axes, and up to 3 are computed here: {caffe_itself()}"
            )
        self.declare((self._channels, self._outputs // self._group))
        sizes = [
            stride * (size - 1) + extent - 2 * pad
            for size, extent, stride, pad in zip(
                self._spatial, self._extent, self._stride, self._pad, strict=True
            )
        ]
        if any(size < 1 for size in sizes):
            raise self.refuse(f"has a top of {sizes}: use less pad")
        return [(*bottoms[0][: self._axis], self._outputs, *sizes)] * len(bottoms)

    def filtered(self, bottom: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        axes = len(self._spatial)
        if axes == 0:
            return functional.conv_transpose1d(
                bottom[..., None], weight[..., None], bias, groups=self._group
            )[..., 0]
        top: Tensor = getattr(functional, _TRANSPOSED[axes - 1])(
            bottom, weight, bias, self._stride, self._pad, 0, self._group, self._dilation
        )
        return top


class Im2col(_Windowed):
    """Each window as channels: (N, channels * kernel, windows...). Caffe: layers/im2col_layer.cpp."""

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        self.read(bottoms[0])
        if not self._spatial:
            raise self.refuse("needs a spatial axis after its channels: use a smaller axis")
        windows = self.convolved()
        channels = self._channels * prod(self._kernel)
        return [(*bottoms[0][: self._axis], channels, *windows)]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        columns = self.columns(self.with_batch(bottoms[0]))
        return [columns.reshape(*bottoms[0].shape[: self._axis], *columns.shape[1:])]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        self.check_exported()
        if len(self._spatial) != 2:
            raise NoEqual("has an equal in PyTorch for 2 spatial axes only")
        columns = f"F.unfold({self.padded(bottoms[0])}, {self._kernel}, {self._dilation}, {self._pad}, {self._stride})"
        height, width = self.step.tops[0][2:]
        return [f"{columns}.unflatten(2, ({height}, {width}))"]


LAYERS: Final = (Convolution, Deconvolution, Im2col)
