"""LRN, BatchNorm, MVN, and Scale and Bias, which often follow."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from caffenets.export.layer_export import LayerExport, Values
from caffenets.export.onnx_graph import Graph
from caffenets.export.steps import Dims, NoEqual, Shape, axis_of
from caffenets.export.torch_code import Code, arguments

_BATCH_NORM: Final = '''
class BatchNorm(nn.Module):
    """Caffe's BatchNorm: its blobs are sums of means and of variances, and the weight of these sums."""

    def __init__(self, channels, eps, fraction, use_global_stats=None):
        super().__init__()
        self.eps, self.fraction, self.stored = eps, fraction, use_global_stats
        self.register_buffer("mean_sum", torch.zeros(channels))
        self.register_buffer("variance_sum", torch.zeros(channels))
        self.register_buffer("weight", torch.zeros(1))

    def forward(self, x):
        if not self.stored and (self.training or self.stored is False):
            mean, variance = torch.zeros_like(self.mean_sum), torch.zeros_like(self.mean_sum)
            y = F.batch_norm(x, mean, variance, training=True, momentum=1.0, eps=self.eps)
            with torch.no_grad():
                self.mean_sum.mul_(self.fraction).add_(mean)
                self.variance_sum.mul_(self.fraction).add_(variance)
                self.weight.mul_(self.fraction).add_(1)
            return y
        factor = torch.where(self.weight == 0, torch.zeros_like(self.weight), 1 / self.weight)
        return F.batch_norm(x, self.mean_sum * factor, self.variance_sum * factor, eps=self.eps)
'''
_LRN_WITHIN: Final = '''
def lrn_within_channels(x, size, alpha, beta):
    """x (1 + alpha mean(x^2)) ^ -beta; the mean is over `size` rows and columns around each place."""
    return x * (1 + alpha * F.avg_pool2d(x * x, size, 1, size // 2)) ** -beta
'''


class LRN(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        param, x = self.param.lrn_param, bottoms[0]
        size, alpha, beta = int(param.local_size), float(param.alpha), float(param.beta)
        if param.norm_region == 0:
            return [graph.add("LRN", x, size=size, alpha=alpha, beta=beta, bias=float(param.k))]
        squares = graph.add("Mul", x, x)
        mean = graph.add(
            "AveragePool", squares, kernel_shape=[size] * 2, pads=[size // 2] * 4, count_include_pad=1
        )  # fmt: skip
        scale = graph.add("Add", graph.add("Mul", mean, graph.constant(alpha)), graph.constant(1.0))
        return [graph.add("Mul", x, graph.add("Pow", scale, graph.constant(-beta)))]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        param = self.param.lrn_param
        alpha, beta = np.float32(param.alpha), np.float32(param.beta)
        if param.norm_region == 0:
            size, k = param.local_size, np.float32(param.k)
            return [
                f"F.local_response_norm({bottoms[0]}, {size}, alpha={alpha}, beta={beta}, k={k})"
            ]
        code.helper(_LRN_WITHIN)
        return [f"lrn_within_channels({bottoms[0]}, {param.local_size}, {alpha}, {beta})"]


class BatchNorm(LayerExport):
    """In ONNX the blobs are divided by their weight; the file's metadata keep Caffe's own."""

    blob_names = ("mean_sum", "variance_sum", "weight")

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        param = self.param.batch_norm_param
        if param.HasField("use_global_stats") and not param.use_global_stats:
            raise NoEqual("normalizes by the statistics of each batch: set use_global_stats: true")
        blobs = [graph.blob_values(index) for index in range(3)]
        mean, variance = _divided(blobs)
        graph.note(self._note, base64.b64encode(np.concatenate(blobs).tobytes()).decode())
        ones, zeros = np.ones_like(mean), np.zeros_like(mean)
        given = [graph.constant(ones), graph.constant(zeros)]
        given += [
            graph.initializer(name, values)
            for name, values in zip(self._names, (mean, variance), strict=True)
        ]
        eps = float(self.param.batch_norm_param.eps)
        return [graph.add("BatchNormalization", bottoms[0], *given, epsilon=eps)]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        param, channels = self.param.batch_norm_param, self.step.blobs[0][0]
        eps = np.float32(param.eps)
        code.helper(_BATCH_NORM)
        given = arguments(
            channels, eps, np.float32(param.moving_average_fraction),
            use_global_stats=(param.use_global_stats if param.HasField("use_global_stats") else None, None),
        )  # fmt: skip
        return [f"{code.part(f'BatchNorm({given})')}({bottoms[0]})"]

    def from_onnx(self, stored: Mapping[str, Values], notes: Mapping[str, str]) -> list[Values]:
        mean, variance = (stored[name].reshape(-1) for name in self._names)
        try:
            kept = np.frombuffer(base64.b64decode(notes.get(self._note, "")), np.float32)
        except ValueError:
            kept = np.zeros(0, np.float32)
        if kept.size == 2 * mean.size + 1:
            blobs = [kept[: mean.size], kept[mean.size : -1], kept[-1:]]
            same = zip(_divided(blobs), (mean, variance), strict=True)
            if all(np.array_equal(one, other, equal_nan=True) for one, other in same):
                return blobs
        return [mean, variance, np.ones(1, np.float32)]  # somebody has changed them

    @property
    def _names(self) -> tuple[str, str]:
        owner = self.step.owners[0].rpartition(".")[0]
        return f"{owner}.mean", f"{owner}.variance"

    @property
    def _note(self) -> str:
        return f"caffe:{self.step.owners[0].rpartition('.')[0]}"


def _divided(blobs: Sequence[Values]) -> tuple[Values, Values]:
    """Mean and variance, as Caffe computes them."""
    weight = np.float32(blobs[2].reshape(-1)[0])
    factor = np.float32(0) if weight == 0 else np.float32(1) / weight
    return blobs[0].reshape(-1) * factor, blobs[1].reshape(-1) * factor


class MVN(LayerExport):
    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        param, x = self.param.mvn_param, bottoms[0]
        axes = self._axes()
        centered = graph.add("Sub", x, graph.add("ReduceMean", x, axes=axes))
        if not param.normalize_variance:
            return [centered]
        variance = graph.add("ReduceMean", graph.add("Mul", centered, centered), axes=axes)
        divisor = graph.add("Add", graph.add("Sqrt", variance), graph.constant(param.eps))
        return [graph.add("Div", centered, divisor)]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        param, x, axes = self.param.mvn_param, bottoms[0], tuple(self._axes())
        centered = f"({x} - {x}.mean({axes}, keepdim=True))"
        if not param.normalize_variance:
            return [centered]
        deviation = f"{x}.var({axes}, correction=0, keepdim=True).sqrt()"
        return [f"{centered} / ({deviation} + {np.float32(param.eps)})"]

    def _axes(self) -> list[int]:
        if len(self.step.bottoms[0]) != 4:
            raise NoEqual("takes 4 axes only when it is exported")
        return [1, 2, 3] if self.param.mvn_param.across_channels else [2, 3]


class _AlongAxes(LayerExport):
    """A layer whose operand covers the axes of its bottom from `axis` on."""

    def operand(self, graph: Graph, param: Any, bottoms: Sequence[str], index: int) -> str:
        """The second bottom, or blob `index`, so that it broadcasts."""
        behind = self._behind(param)
        if len(bottoms) == 1 or index:
            shape = self.step.blobs[0 if len(bottoms) > 1 else index]
            return graph.blob(0 if len(bottoms) > 1 else index, (*shape, *(1,) * behind))
        if not behind:
            return bottoms[1]
        axes = range(len(self.step.bottoms[1]), len(self.step.bottoms[1]) + behind)
        return graph.add("Unsqueeze", bottoms[1], graph.integers(*axes))

    def stretched(self, param: Any, operand: str) -> str:
        """The expression of the operand that broadcasts."""
        behind = self._behind(param)
        return f"{operand}[(..., {', '.join(['None'] * behind)})]" if behind else operand

    def _behind(self, param: Any) -> int:
        """Axes of the bottom behind the operand's."""
        bottom = self.step.bottoms[0]
        operand: Dims | Shape = (
            self.step.bottoms[1] if len(self.step.bottoms) > 1 else self.step.blobs[0]
        )
        return len(bottom) - axis_of(param.axis, bottom) - len(operand) if operand else 0


class Scale(_AlongAxes):
    @classmethod
    def names(cls, param: Any, count: int) -> tuple[str, ...]:
        return ("bias",) if len(param.bottom) > 1 else cls.blob_names[:count]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        param = self.param.scale_param
        top = graph.add("Mul", bottoms[0], self.operand(graph, param, bottoms, 0))
        if param.bias_term:
            top = graph.add("Add", top, self.operand(graph, param, bottoms, 1))
        return [top]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        param = self.param.scale_param
        operands = [*bottoms[1:], *(code.parameters() if self.step.blobs else ())]
        scale, *bias = (self.stretched(param, one) for one in operands)
        return [" + ".join([f"{bottoms[0]} * {scale}", *bias])]


class Bias(_AlongAxes):
    @classmethod
    def names(cls, param: Any, count: int) -> tuple[str, ...]:
        return ("bias",)[:count]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        operand = self.operand(graph, self.param.bias_param, bottoms, 0)
        return [graph.add("Add", bottoms[0], operand)]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        operand = code.parameters()[0] if self.step.blobs else bottoms[1]
        return [f"{bottoms[0]} + {self.stretched(self.param.bias_param, operand)}"]


EXPORTS: Final = (LRN, BatchNorm, MVN, Scale, Bias)
