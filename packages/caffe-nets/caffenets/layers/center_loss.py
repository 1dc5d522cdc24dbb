"""CenterLoss: how far features are from a learned center of their class. Wen et al. 2016, "A Discriminative Feature
Learning Approach for Deep Face Recognition", ECCV.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from caffenets.layer import BlobSpec, Shape
from caffenets.layers.axes import canonical_axis, count
from caffenets.layers.bottoms import checked_labels
from caffenets.layers.losses import Loss
from caffenets.torch_later import Function, Tensor, torch


class CenterLoss(Loss):
    """Half the squared distance of x to c[label], over the batch; the blob c has a row for each class.

    The gradient of a center is not the loss's: it is (n c - the sum of its class's x) / (n + 1) with n of its class in
    the batch, whatever the loss weighs. layers/center_loss_layer.cpp of caffe-face.
    """

    blob_names = ("centers",)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        tops = super().setup(bottoms)
        param = self.param.center_loss_param
        if param.num_output < 1 or count(bottoms[1]) != bottoms[0][0]:
            raise self.refuse(
                f"has num_output {param.num_output} and {count(bottoms[1])} labels for a batch of {bottoms[0][0]}: "
                "give the number of classes, and each item one label"
            )
        if canonical_axis(self, param.axis, bottoms[0]) != 1:
            raise self.refuse(
                f"has axis {param.axis}: use 1, so that each item of the batch is one row"
            )
        self.blobs = [BlobSpec((param.num_output, count(bottoms[0], 1)), param.center_filler)]
        return tops

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        x = bottoms[0].float().flatten(1)
        labels = checked_labels(self, self.labels(bottoms[1]), len(blobs[0]))
        return [_CenterLoss.apply(x, blobs[0], labels)]  # type: ignore[no-untyped-call]


class _CenterLoss(Function):
    """The loss of rows `x` against `centers`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, centers: Tensor, labels: Tensor) -> Tensor:
        distance = x - centers[labels]
        ctx.save_for_backward(distance, centers, labels)
        return distance.square().sum() / (2 * len(x))

    @staticmethod
    def backward(ctx: Any, *top_diffs: Tensor) -> Any:
        distance, centers, labels = ctx.saved_tensors
        away = torch.zeros_like(centers).index_add_(0, labels, -distance)
        number = centers.new_zeros(len(centers)).index_add_(
            0, labels, centers.new_ones(len(labels))
        )
        return distance * (top_diffs[0] / len(distance)), away / (number + 1)[:, None], None


LAYERS: Final = (CenterLoss,)
