"""Layers that compute each element by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import isfinite, log
from typing import Any, ClassVar, Final

import numpy as np

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.steps import NoEqual
from caffenets.forms.torch_code import Code, number
from caffenets.layer import BlobSpec, Layer, LayerContext, Shape
from caffenets.torch_later import Tensor, functional, torch


class Elementwise(Layer):
    """A layer with one bottom and one top of the same shape, and no blobs."""

    in_place = True
    op: ClassVar[str]
    call: ClassVar[str]

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

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [self.nodes(graph, bottoms[0])]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [self.expression(bottoms[0])]

    def nodes(self, graph: Graph, x: str) -> str:
        """Its nodes, by default one without options."""
        return graph.add(self.op, x)

    def expression(self, x: str) -> str:
        """Its expression in PyTorch, by default a call without options."""
        return f"{self.call}({x})"


class ReLU(Elementwise):
    """max(x, 0) + negative_slope min(x, 0); the gradient at 0 is negative_slope's. Caffe: layers/relu_layer.cpp."""

    def apply(self, bottom: Tensor) -> Tensor:
        slope = self.param.relu_param.negative_slope
        return functional.leaky_relu(bottom, slope) if slope else functional.relu(bottom)

    def nodes(self, graph: Graph, x: str) -> str:
        slope = float(self.param.relu_param.negative_slope)
        return graph.add("LeakyRelu", x, alpha=slope) if slope else graph.add("Relu", x)

    def expression(self, x: str) -> str:
        slope = float(self.param.relu_param.negative_slope)
        return f"F.leaky_relu({x}, {number(slope)})" if slope else f"F.relu({x})"


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

    def nodes(self, graph: Graph, x: str) -> str:
        slope = float(self.param.relu6_param.negative_slope)
        if not slope:
            return graph.add("Clip", x, graph.constant(0.0), graph.constant(6.0))
        return graph.add("Clip", graph.add("LeakyRelu", x, alpha=slope), "", graph.constant(6.0))

    def expression(self, x: str) -> str:
        slope = number(self.param.relu6_param.negative_slope)
        return f"F.leaky_relu({x}, {slope}).clamp(max=6)" if slope else f"F.relu6({x})"


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

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        (blob,) = self.step.blobs
        behind = (1,) * (len(self.step.bottoms[0]) - 2) if blob else ()
        return [graph.add("PRelu", bottoms[0], graph.blob(0, (*blob, *behind) or (1,)))]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        (weight,) = code.parameters()
        return [f"F.prelu({bottoms[0]}, {weight}.reshape(-1))"]


class ELU(Elementwise):
    """x above 0, else alpha (exp(x) - 1). Caffe: layers/elu_layer.cpp."""

    def apply(self, bottom: Tensor) -> Tensor:
        return functional.elu(bottom, self.param.elu_param.alpha)

    def nodes(self, graph: Graph, x: str) -> str:
        return graph.add("Elu", x, alpha=float(self.param.elu_param.alpha))

    def expression(self, x: str) -> str:
        return f"F.elu({x}, {number(self.param.elu_param.alpha)})"


class Sigmoid(Elementwise):
    """1 / (1 + exp(-x)). Caffe: layers/sigmoid_layer.cpp."""

    op, call = "Sigmoid", "torch.sigmoid"

    def apply(self, bottom: Tensor) -> Tensor:
        return torch.sigmoid(bottom)


class TanH(Elementwise):
    """The hyperbolic tangent. Caffe: layers/tanh_layer.cpp."""

    op, call = "Tanh", "torch.tanh"

    def apply(self, bottom: Tensor) -> Tensor:
        return torch.tanh(bottom)


class AbsVal(Elementwise):
    """|x|, with gradient 0 at 0. Caffe: layers/absval_layer.cpp."""

    op, call = "Abs", "torch.abs"

    in_place = False

    def apply(self, bottom: Tensor) -> Tensor:
        return torch.abs(bottom)


class BNLL(Elementwise):
    """log(1 + exp(x)). Caffe: layers/bnll_layer.cpp."""

    op, call = "Softplus", "F.softplus"

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
        self._outer = float(np.exp(np.float32(log_base * param.shift)))

    def apply(self, bottom: Tensor) -> Tensor:
        top = torch.exp(bottom if self._inner == 1 else bottom * self._inner)
        return top if self._outer == 1 else top * self._outer

    def nodes(self, graph: Graph, x: str) -> str:
        return _scaled(graph, graph.add("Exp", _scaled(graph, x, self._inner)), self._outer)

    def expression(self, x: str) -> str:
        return _times(f"torch.exp({_times(x, self._inner)})", self._outer)


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

    def nodes(self, graph: Graph, x: str) -> str:
        param = self.param.log_param
        inside = _scaled(graph, x, param.scale, param.shift)
        return _scaled(graph, graph.add("Log", inside), self._outer)

    def expression(self, x: str) -> str:
        param = self.param.log_param
        inside = _times(x, param.scale, param.shift)
        return _times(f"torch.log({inside})", self._outer)


class Power(Elementwise):
    """(shift + scale x) ^ power. Caffe: layers/power_layer.cpp.

    With no shift Caffe divides by x for the gradient, which is NaN at 0; here it is the power's own.
    """

    def check(self) -> None:
        param = self.param.power_param
        self._constant = None
        if param.power * param.scale == 0:  # Caffe leaves the bottom unread
            with np.errstate(all="ignore"):
                self._constant = float(np.float32(param.shift) ** np.float32(param.power))
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

    def nodes(self, graph: Graph, x: str) -> str:
        param = self.param.power_param
        if self._constant is not None:
            top = graph.add("Mul", x, graph.constant(0.0))
            return graph.add("Add", top, graph.constant(self._constant))
        inside = _scaled(graph, x, param.scale, param.shift)
        return inside if param.power == 1 else graph.add("Pow", inside, graph.constant(param.power))

    def expression(self, x: str) -> str:
        param = self.param.power_param
        if self._constant is not None:
            return f"torch.full_like({x}, {number(self._constant)})"
        inside = _times(x, param.scale, param.shift)
        return inside if param.power == 1 else f"torch.pow({inside}, {number(param.power)})"


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

    def nodes(self, graph: Graph, x: str) -> str:
        inside = _scaled(graph, x, self.param.swish_param.beta)
        return graph.add("Mul", x, graph.add("Sigmoid", inside))

    def expression(self, x: str) -> str:
        return f"{x} * torch.sigmoid({_times(x, self.param.swish_param.beta)})"


class Clip(Elementwise):
    """x held between min and max; the gradient passes at both. Caffe: layers/clip_layer.cpp."""

    def apply(self, bottom: Tensor) -> Tensor:
        return torch.clamp(bottom, self.param.clip_param.min, self.param.clip_param.max)

    def nodes(self, graph: Graph, x: str) -> str:
        param = self.param.clip_param
        return graph.add("Clip", x, graph.constant(param.min), graph.constant(param.max))

    def expression(self, x: str) -> str:
        param = self.param.clip_param
        return f"torch.clamp({x}, {number(param.min)}, {number(param.max)})"


class Threshold(Elementwise):
    """1 above the threshold, else 0; no gradient. Caffe: layers/threshold_layer.cpp."""

    constant: ClassVar[Mapping[int, str]] = {0: "bottom"}

    def apply(self, bottom: Tensor) -> Tensor:
        threshold = float(self.param.threshold_param.threshold)
        return (bottom.detach() > threshold).to(bottom.dtype)

    def nodes(self, graph: Graph, x: str) -> str:
        limit = graph.constant(self.param.threshold_param.threshold)
        return graph.add("Cast", graph.add("Greater", x, limit), to=1)

    def expression(self, x: str) -> str:
        return f"({x} > {number(self.param.threshold_param.threshold)}).float()"


class Dropout(Elementwise):
    """In training, elements are zeroed with probability `dropout_ratio` and the others scaled by 1 / (1 - ratio).

    Without `scale_train` all are scaled by 1 - ratio in tests instead (Fast R-CNN's Caffe); with `sample_weights_test`
    tests draw, too (SegNet's). Drawn by PyTorch's global generator. Caffe: layers/dropout_layer.cpp.
    """

    def __init__(self, param: object, place: LayerContext) -> None:
        super().__init__(param, place)
        given = self.param.dropout_param
        # pycaffe's own messages have neither.
        self._samples = bool(getattr(given, "sample_weights_test", False))
        self._training = place.phase == "TRAIN" or self._samples
        self._kept = 1.0 if getattr(given, "scale_train", True) else 1 - given.dropout_ratio

    def check(self) -> None:
        ratio = self.param.dropout_param.dropout_ratio
        if not 0 <= ratio < 1:
            raise self.refuse(f"has dropout_ratio {ratio}: use 0 or more and less than 1")

    def apply(self, bottom: Tensor) -> Tensor:
        top = functional.dropout(bottom, self.param.dropout_param.dropout_ratio, self._training)
        return top if self._kept == 1 else top * self._kept

    def nodes(self, graph: Graph, x: str) -> str:
        if self._samples:
            raise NoEqual("draws in tests: leave sample_weights_test out")
        return _scaled(graph, x, self._kept)

    def expression(self, x: str) -> str:
        ratio = number(self.param.dropout_param.dropout_ratio)
        training = "True" if self._samples else "self.training"
        return _times(f"F.dropout({x}, {ratio}, {training})", self._kept)


def _scaled(graph: Graph, x: str, scale: float, shift: float = 0.0) -> str:
    """scale x + shift."""
    if scale != 1:
        x = graph.add("Mul", x, graph.constant(scale))
    return graph.add("Add", x, graph.constant(shift)) if shift else x


def _times(x: str, scale: float, shift: float = 0.0) -> str:
    product = x if scale == 1 else f"{x} * {number(scale)}"
    return product if not shift else f"{product} + {number(shift)}"


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
