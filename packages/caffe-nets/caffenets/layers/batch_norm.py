"""Batch normalization with Caffe's three blobs: sums of means and variances, and their weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from caffenets.layer import BlobSpec, Layer, Shape
from caffenets.torch_later import Tensor, torch


class BatchNorm(Layer):
    """(x - mean) / sqrt(variance + eps), by channel: of the batch in training, of the blobs in tests.

    A training pass multiplies each blob by `moving_average_fraction` and adds the batch's mean, its variance times
    m / (m - 1), and 1. The gradient is that of Caffe: through the batch's statistics, not through the blobs.
    Caffe: layers/batch_norm_layer.cpp.
    """

    in_place = True

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


LAYERS: Final = (BatchNorm,)
