"""Layers that compute each element by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import log
from typing import Final

import numpy as np

from caffenets.export.layer_export import LayerExport
from caffenets.export.onnx_graph import Graph
from caffenets.export.torch_code import Code


class Elementwise(LayerExport):
    """One bottom, one top, no blobs."""

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [self.nodes(graph, bottoms[0])]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [self.expression(bottoms[0])]

    @abstractmethod
    def nodes(self, graph: Graph, x: str) -> str: ...

    @abstractmethod
    def expression(self, x: str) -> str: ...


class _Plain(Elementwise):
    """One operator without options."""

    op: str
    call: str

    def nodes(self, graph: Graph, x: str) -> str:
        return graph.add(self.op, x)

    def expression(self, x: str) -> str:
        return f"{self.call}({x})"


class Sigmoid(_Plain):
    op, call = "Sigmoid", "torch.sigmoid"


class TanH(_Plain):
    op, call = "Tanh", "torch.tanh"


class AbsVal(_Plain):
    op, call = "Abs", "torch.abs"


class BNLL(_Plain):
    op, call = "Softplus", "F.softplus"


class ReLU(Elementwise):
    def nodes(self, graph: Graph, x: str) -> str:
        slope = float(self.param.relu_param.negative_slope)
        return graph.add("LeakyRelu", x, alpha=slope) if slope else graph.add("Relu", x)

    def expression(self, x: str) -> str:
        slope = float(self.param.relu_param.negative_slope)
        return f"F.leaky_relu({x}, {_number(slope)})" if slope else f"F.relu({x})"


class PReLU(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        (blob,) = self.step.blobs
        behind = (1,) * (len(self.step.bottoms[0]) - 2) if blob else ()
        return [graph.add("PRelu", bottoms[0], graph.blob(0, (*blob, *behind) or (1,)))]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        (weight,) = code.parameters()
        return [f"F.prelu({bottoms[0]}, {weight}.reshape(-1))"]


class ELU(Elementwise):
    def nodes(self, graph: Graph, x: str) -> str:
        return graph.add("Elu", x, alpha=float(self.param.elu_param.alpha))

    def expression(self, x: str) -> str:
        return f"F.elu({x}, {_number(self.param.elu_param.alpha)})"


class Exp(Elementwise):
    def _factors(self) -> tuple[float, float]:
        """(inner, outer) of outer exp(inner x)."""
        param = self.param.exp_param
        base = _log_of_base(param.base)
        return base * param.scale, float(np.exp(np.float32(base * param.shift)))

    def nodes(self, graph: Graph, x: str) -> str:
        inner, outer = self._factors()
        return _scaled(graph, graph.add("Exp", _scaled(graph, x, inner)), outer)

    def expression(self, x: str) -> str:
        inner, outer = self._factors()
        return _times(f"torch.exp({_times(x, inner)})", outer)


class Log(Elementwise):
    def nodes(self, graph: Graph, x: str) -> str:
        param = self.param.log_param
        inside = _scaled(graph, x, param.scale, param.shift)
        return _scaled(graph, graph.add("Log", inside), 1 / _log_of_base(param.base))

    def expression(self, x: str) -> str:
        param = self.param.log_param
        inside = _times(x, param.scale, param.shift)
        return _times(f"torch.log({inside})", 1 / _log_of_base(param.base))


class Power(Elementwise):
    def nodes(self, graph: Graph, x: str) -> str:
        param = self.param.power_param
        if param.power * param.scale == 0:
            top = graph.add("Mul", x, graph.constant(0.0))
            return graph.add("Add", top, graph.constant(float(param.shift) ** float(param.power)))
        inside = _scaled(graph, x, param.scale, param.shift)
        return inside if param.power == 1 else graph.add("Pow", inside, graph.constant(param.power))

    def expression(self, x: str) -> str:
        param = self.param.power_param
        if param.power * param.scale == 0:
            return f"torch.full_like({x}, {_number(float(param.shift) ** float(param.power))})"
        inside = _times(x, param.scale, param.shift)
        return inside if param.power == 1 else f"torch.pow({inside}, {_number(param.power)})"


class Swish(Elementwise):
    def nodes(self, graph: Graph, x: str) -> str:
        inside = _scaled(graph, x, self.param.swish_param.beta)
        return graph.add("Mul", x, graph.add("Sigmoid", inside))

    def expression(self, x: str) -> str:
        return f"{x} * torch.sigmoid({_times(x, self.param.swish_param.beta)})"


class Clip(Elementwise):
    def nodes(self, graph: Graph, x: str) -> str:
        param = self.param.clip_param
        return graph.add("Clip", x, graph.constant(param.min), graph.constant(param.max))

    def expression(self, x: str) -> str:
        param = self.param.clip_param
        return f"torch.clamp({x}, {_number(param.min)}, {_number(param.max)})"


class Threshold(Elementwise):
    def nodes(self, graph: Graph, x: str) -> str:
        limit = graph.constant(self.param.threshold_param.threshold)
        return graph.add("Cast", graph.add("Greater", x, limit), to=1)

    def expression(self, x: str) -> str:
        return f"({x} > {_number(self.param.threshold_param.threshold)}).float()"


class Dropout(Elementwise):
    """Nothing in a test; the module of PyTorch has it for training."""

    def nodes(self, graph: Graph, x: str) -> str:
        return x

    def expression(self, x: str) -> str:
        ratio = _number(self.param.dropout_param.dropout_ratio)
        return f"F.dropout({x}, {ratio}, self.training)"


def _log_of_base(base: float) -> float:
    return 1.0 if base == -1 else log(base)


def _scaled(graph: Graph, x: str, scale: float, shift: float = 0.0) -> str:
    """scale x + shift."""
    if scale != 1:
        x = graph.add("Mul", x, graph.constant(scale))
    return graph.add("Add", x, graph.constant(shift)) if shift else x


def _times(x: str, scale: float, shift: float = 0.0) -> str:
    product = x if scale == 1 else f"{x} * {_number(scale)}"
    return product if not shift else f"{product} + {_number(shift)}"


def _number(value: float) -> str:
    """A float32 in as few digits as name it."""
    return str(np.float32(value))


EXPORTS: Final = (
    Sigmoid,
    TanH,
    AbsVal,
    BNLL,
    ReLU,
    PReLU,
    ELU,
    Exp,
    Log,
    Power,
    Swish,
    Clip,
    Threshold,
    Dropout,
)
