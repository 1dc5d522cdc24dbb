"""Convolutions with a filter of its own for each channel, as MobileNet has them.

Howard et al. 2017, arXiv:1704.04861. The Caffes that have these layers read `num_output` and `group` in ways of their
own; both must say, or leave it open, that there are as many groups as channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from caffenets.layer import Shape
from caffenets.layers.axes import canonical_axis
from caffenets.layers.convolution import Convolution


class DepthwiseConvolution(Convolution):
    """Weights (outputs, 1, kernel...), bias (outputs); `group` is not needed. layers/depthwise_conv_layer.cpp."""

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        own = type(self.param)()
        own.CopyFrom(self.param)
        param = own.convolution_param
        channels = bottoms[0][canonical_axis(self, param.axis, bottoms[0])]
        if param.HasField("group") and param.group not in (1, channels):
            raise self.refuse(
                f"has group {param.group} and {channels} channels: leave group out, or use type Convolution"
            )
        param.group = channels
        if not param.num_output:
            param.num_output = channels
        self.param = own
        return super().setup(bottoms)


class ConvolutionDepthwise(DepthwiseConvolution):
    """The same layer under its other name. layers/conv_dw_layer.cpp."""


LAYERS: Final = (DepthwiseConvolution, ConvolutionDepthwise)
