"""Batch normalization with Caffe's three blobs: sums of means and variances, and their weight."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.steps import NoEqual
from caffenets.forms.torch_code import Code, arguments, number
from caffenets.layer import BlobSpec, Layer, Shape, Values
from caffenets.torch_later import Tensor, torch

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


class BatchNorm(Layer):
    """(x - mean) / sqrt(variance + eps), by channel: of the batch in training, of the blobs in tests.

    A training pass multiplies each blob by `moving_average_fraction` and adds the batch's mean, its variance times
    m / (m - 1), and 1. The gradient is that of Caffe: through the batch's statistics, not through the blobs.
    Caffe: layers/batch_norm_layer.cpp.
    """

    in_place = True
    blob_names = ("mean_sum", "variance_sum", "weight")

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        (bottom,) = bottoms
        param = self.param.batch_norm_param
        if len(bottom) < 2:
            raise self.refuse("needs a bottom with 2 axes or more, the second of them channels")
        if any(spec.lr_mult for spec in self.param.param):
            raise self.refuse(
                "has an lr_mult above 0: its blobs are statistics, remove it or use 0"
            )
        self._stored = self.place.phase == "TEST"
        if param.HasField("use_global_stats"):
            self._stored = param.use_global_stats
        channels = bottom[1]
        self.blobs = [BlobSpec(shape, None, True) for shape in ((channels,), (channels,), (1,))]
        return [bottom]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        x, eps = bottoms[0], self.param.batch_norm_param.eps  # of narrow types sums are in float32
        if self._stored:
            with torch.no_grad():
                weight = blobs[2]
                factor = torch.where(weight == 0, torch.zeros_like(weight), 1 / weight)
                mean, variance = blobs[0] * factor, blobs[1] * factor
            top = torch.batch_norm(x, None, None, mean, variance, False, 0.0, eps, False)
        else:
            # Running values with momentum 1 are the batch's own mean and unbiased variance.
            mean, variance = torch.zeros_like(blobs[0]), torch.zeros_like(blobs[1])
            top = torch.batch_norm(x, None, None, mean, variance, True, 1.0, eps, False)
            self._add(blobs, mean, variance, x.numel() // x.shape[1])
        return [top]

    def _add(self, blobs: Sequence[Tensor], mean: Tensor, variance: Tensor, values: int) -> None:
        """Add a batch's statistics to the blobs; `values` are those of one channel."""
        kept = self.param.batch_norm_param.moving_average_fraction
        with torch.no_grad():
            if values == 1:  # no unbiased variance
                variance = torch.zeros_like(variance)
            blobs[0].mul_(kept).add_(mean)
            blobs[1].mul_(kept).add_(variance)
            blobs[2].mul_(kept).add_(1)

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

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        param, channels = self.param.batch_norm_param, self.step.blobs[0][0]
        eps = number(param.eps)
        code.helper(_BATCH_NORM)
        given = arguments(
            channels, eps, number(param.moving_average_fraction),
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


LAYERS: Final = (BatchNorm,)
