"""SmoothL1Loss: the loss of Fast R-CNN's boxes. Girshick 2015, arXiv:1504.08083."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from caffenets.layer import Layer, Shape
from caffenets.layers.axes import count
from caffenets.layers.bottoms import wide
from caffenets.layers.losses import loss_of_parts
from caffenets.layers.options import choice
from caffenets.torch_later import Tensor, torch


def smooth_l1(difference: Tensor, sigma: float = 1.0) -> Tensor:
    """(sigma x)^2 / 2 where |x| < 1 / sigma^2, else |x| - 1 / (2 sigma^2)."""
    squared = sigma * sigma
    size = difference.abs()
    return torch.where(
        size < 1 / squared, difference.square() * (squared / 2), size - 0.5 / squared
    )


class SmoothL1Loss(Layer):
    """The sum of `smooth_l1` of the first bottom less the second, over the batch; both get a gradient.

    A third bottom is multiplied with the difference, a fourth with the loss of each value. `loss_param` chooses another
    divisor, as in R-FCN: FULL and VALID the batch times its places, NONE 1. Fast R-CNN's Caffe,
    layers/smooth_L1_loss_layer.cu.
    """

    bottoms: ClassVar[tuple[int, int | None]] = (2, 4)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        if not bottoms[0] or any(count(shape) != count(bottoms[0]) for shape in bottoms):
            raise self.refuse(
                f"compares bottoms of shapes {', '.join(map(str, bottoms))}: all must have as many values"
            )
        if not self.param.smooth_l1_loss_param.sigma:
            raise self.refuse("has sigma 0, by which it would divide: use another")
        param = self.param.loss_param
        self._normalization = "BATCH_SIZE"
        if param.HasField("normalization"):
            self._normalization = choice(param, "normalization")
        elif param.HasField("normalize") and param.normalize:
            self._normalization = "VALID"
        return [()]

    def loss_of_parts(self) -> str:
        return loss_of_parts(self._normalization, None)

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        first, *others = map(wide, bottoms)
        difference = first - others[0].reshape(first.shape)
        if len(bottoms) > 2:
            difference = difference * others[1].detach().reshape(first.shape)
        losses = smooth_l1(difference, float(self.param.smooth_l1_loss_param.sigma))
        if len(bottoms) > 3:
            losses = losses * others[2].detach().reshape(first.shape)
        batch, places = first.shape[0], count(tuple(first.shape), 2)
        divisor = {"BATCH_SIZE": batch, "NONE": 1}.get(self._normalization, batch * places)
        return [losses.sum() / max(1, divisor)]


LAYERS: Final = (SmoothL1Loss,)
