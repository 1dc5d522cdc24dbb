"""Layers that compute each element by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import isfinite, log
from typing import Any, ClassVar, Final

from caffenets.layer import BlobSpec, Layer, LayerContext, Shape
from caffenets.torch_later import Tensor, functional, torch


class Elementwise(Layer):
    """A layer with one bottom and one top of the same shape, and no blobs."""

    in_place = True

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        self.check()
        return [bottoms[0]]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [self.apply(bottoms[0])]

    def check(self) -> None:
        """Refuse options that Caffe refuses."""

    @abstractmethod
    def apply(self, bottom: Tensor) -> Tensor:
        """The top."""


class ReLU(Elementwise):
    """max(x, 0) + negative_slope min(x, 0); the gradient at 0 is negative_slope's. Caffe: layers/relu_layer.cpp."""

    def apply(self, bottom: Tensor) -> Tensor:
        slope = self.param.relu_param.negative_slope
        return functional.leaky_relu(bottom, slope) if slope else functional.relu(bottom)


class ReLU6(Elementwise):
    """min(max(x, 0), 6), and negative_slope min(x, 0) below 0.

    Sandler et al. 2018, arXiv:1801.04381; layers/relu6_layer.cpp of the Caffes for MobileNetV2.
    """

    def apply(self, bottom: Tensor) -> Tensor:
        slope = self.param.relu6_param.negative_slope
        return (
            functional.leaky_relu(bottom, slope).clamp(max=6.0)
            if slope
            else functional.relu6(bottom)
        )


class PReLU(Layer):
    """ReLU whose negative slope is learned, by channel or for all. Caffe: layers/prelu_layer.cpp."""

    in_place = True

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.prelu_param
        if len(bottoms[0]) < 2:
            raise self.refuse("needs a bottom with 2 axes or more, the second of them channels")
        filler = param.filler
        if not param.HasField("filler"):
            filler = type(param.filler)(type="constant", value=0.25)
        self.blobs = [BlobSpec(() if param.channel_shared else (bottoms[0][1],), filler)]
        return [bottoms[0]]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [functional.prelu(bottoms[0], blobs[0].reshape(-1))]


class ELU(Elementwise):
    """x above 0, else alpha (exp(x) - 1). Caffe: layers/elu_layer.cpp."""

    def apply(self, bottom: Tensor) -> Tensor:
        return functional.elu(bottom, self.param.elu_param.alpha)


class Sigmoid(Elementwise):
    """1 / (1 + exp(-x)). Caffe: layers/sigmoid_layer.cpp."""

    def apply(self, bottom: Tensor) -> Tensor:
        return torch.sigmoid(bottom)


class TanH(Elementwise):
    """The hyperbolic tangent. Caffe: layers/tanh_layer.cpp."""

    def apply(self, bottom: Tensor) -> Tensor:
        return torch.tanh(bottom)


class AbsVal(Elementwise):
    """|x|, with gradient 0 at 0. Caffe: layers/absval_layer.cpp."""

    in_place = False

    def apply(self, bottom: Tensor) -> Tensor:
        return torch.abs(bottom)


class BNLL(Elementwise):
    """log(1 + exp(x)). Caffe: layers/bnll_layer.cpp."""

    def apply(self, bottom: Tensor) -> Tensor:
        # Beyond 50 the logarithm is x in float32, and Caffe's gradient is that of 50.
        return functional.softplus(bottom, threshold=50.0)


def _log_of_base(layer: Layer, base: float) -> float:
    """The natural logarithm of `base`, where -1 stands for e."""
    if base == -1:
        return 1.0
    if not base > 0:
        raise layer.refuse(f"has base {base}: use a base above 0, or -1 for e")
    return log(base)


class Exp(Elementwise):
    """base ^ (shift + scale x). Caffe: layers/exp_layer.cpp."""

    def check(self) -> None:
        param = self.param.exp_param
        log_base = _log_of_base(self, param.base)
        self._inner = log_base * param.scale
        self._outer = float(torch.tensor(log_base * param.shift).exp())

    def apply(self, bottom: Tensor) -> Tensor:
        top = torch.exp(bottom if self._inner == 1 else bottom * self._inner)
        return top if self._outer == 1 else top * self._outer


class Log(Elementwise):
    """log(shift + scale x) to a base. Caffe: layers/log_layer.cpp."""

    def check(self) -> None:
        log_base = _log_of_base(self, self.param.log_param.base)
        if log_base == 0:
            raise self.refuse("has base 1, to which there is no logarithm: use another base")
        self._outer = 1 / log_base

    def apply(self, bottom: Tensor) -> Tensor:
        top = torch.log(_affine(bottom, self.param.log_param))
        return top if self._outer == 1 else top * self._outer


class Power(Elementwise):
    """(shift + scale x) ^ power. Caffe: layers/power_layer.cpp.

    With no shift Caffe divides by x for the gradient, which is NaN at 0; here it is the power's own.
    """

    def check(self) -> None:
        param = self.param.power_param
        self._constant = None
        if param.power * param.scale == 0:  # Caffe leaves the bottom unread
            self._constant = float(torch.tensor(param.shift).pow(param.power))
            if not isfinite(self._constant):
                raise self.refuse(
                    f"has shift {param.shift}, scale {param.scale} and power {param.power}, "
                    "whose top is not finite: use another shift"
                )

    def apply(self, bottom: Tensor) -> Tensor:
        if self._constant is not None:
            return bottom.detach() * 0 + self._constant
        power = float(self.param.power_param.power)
        top = _affine(bottom, self.param.power_param)
        return top if power == 1 else torch.pow(top, power)


def _affine(bottom: Tensor, param: Any) -> Tensor:
    scale, shift = float(param.scale), float(param.shift)
    if scale == 1:
        return bottom if shift == 0 else bottom + shift
    scaled = bottom * scale
    return scaled if shift == 0 else scaled + shift


class Swish(Elementwise):
    """x sigmoid(beta x). Caffe: layers/swish_layer.cpp."""

    def apply(self, bottom: Tensor) -> Tensor:
        beta = float(self.param.swish_param.beta)
        return functional.silu(bottom) if beta == 1 else bottom * torch.sigmoid(bottom * beta)


class Clip(Elementwise):
    """x held between min and max; the gradient passes at both. Caffe: layers/clip_layer.cpp."""

    def apply(self, bottom: Tensor) -> Tensor:
        return torch.clamp(bottom, self.param.clip_param.min, self.param.clip_param.max)


class Threshold(Elementwise):
    """1 above the threshold, else 0; no gradient. Caffe: layers/threshold_layer.cpp."""

    constant: ClassVar[Mapping[int, str]] = {0: "bottom"}

    def apply(self, bottom: Tensor) -> Tensor:
        threshold = float(self.param.threshold_param.threshold)
        return (bottom.detach() > threshold).to(bottom.dtype)


class Dropout(Elementwise):
    """In training, elements are zeroed with probability `dropout_ratio` and the others scaled by 1 / (1 - ratio).

    Drawn by PyTorch's global generator. Caffe: layers/dropout_layer.cpp.
    """

    def __init__(self, param: object, place: LayerContext) -> None:
        super().__init__(param, place)
        self._training = place.phase == "TRAIN"

    def check(self) -> None:
        ratio = self.param.dropout_param.dropout_ratio
        if not 0 <= ratio < 1:
            raise self.refuse(f"has dropout_ratio {ratio}: use 0 or more and less than 1")

    def apply(self, bottom: Tensor) -> Tensor:
        return functional.dropout(bottom, self.param.dropout_param.dropout_ratio, self._training)


LAYERS: Final = (
    ReLU,
    ReLU6,
    PReLU,
    ELU,
    Sigmoid,
    TanH,
    AbsVal,
    BNLL,
    Exp,
    Log,
    Power,
    Swish,
    Clip,
    Threshold,
    Dropout,
)
