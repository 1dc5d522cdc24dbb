"""Losses, each one number: EuclideanLoss, HingeLoss, ContrastiveLoss, InfogainLoss, MultinomialLogisticLoss and
SigmoidCrossEntropyLoss. SoftmaxWithLoss has a file of its own. All compute in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from caffenets.layer import Layer, Shape
from caffenets.layers.axes import canonical_axis, count
from caffenets.layers.bottoms import checked_labels, rows
from caffenets.layers.options import choice
from caffenets.torch_later import Function, Tensor, functional, torch

# Caffe's kLOG_THRESHOLD: the smallest probability that it takes a logarithm of.
SMALLEST_PROBABILITY = 1e-20


class _WithGradient(Function):
    """`loss`, whose gradient to `bottom` is said to be `gradient`."""

    @staticmethod
    def forward(ctx: Any, bottom: Tensor, loss: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0], None, None


def loss_of_parts(normalization: str, ignored: int | None) -> str:
    """See `Layer.loss_of_parts`; without `ignored` each label counts."""
    if normalization == "NONE":
        return "sum"
    return "counted" if normalization == "VALID" and ignored is not None else "mean"


class Loss(Layer):
    """A layer with a scalar top that compares its first bottom with its second."""

    bottoms = (2, 2)
    constant: ClassVar[Mapping[int, str]] = {1: "labels"}

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        if not bottoms[0] or not bottoms[1] or bottoms[0][0] != bottoms[1][0]:
            raise self.refuse(
                f"compares bottoms of shapes {bottoms[0]} and {bottoms[1]}: the first axis of both "
                "must be the batch"
            )
        return [()]

    _normalization = "BATCH_SIZE"
    _ignored: int | None = None

    def loss_of_parts(self) -> str:
        return loss_of_parts(self._normalization, self._ignored)

    def counted(self, *bottoms: Tensor) -> Tensor:
        return bottoms[0].long().ne(self._ignored or 0).sum()

    def labels(self, bottom: Tensor) -> Tensor:
        """The labels as one row of integers."""
        return bottom.detach().reshape(-1).long()


class EuclideanLoss(Loss):
    """Half the squared distance of the bottoms over the batch; both get a gradient.

    Caffe: layers/euclidean_loss_layer.cpp.
    """

    constant: ClassVar[Mapping[int, str]] = {}

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        tops = super().setup(bottoms)
        if count(bottoms[0], 1) != count(bottoms[1], 1):
            raise self.refuse(
                f"compares items of {count(bottoms[0], 1)} and of {count(bottoms[1], 1)} values: "
                "they must be as many"
            )
        return tops

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        first, second = (rows(bottom.float()) for bottom in bottoms)
        return [(first - second).square().sum() / (2 * len(first))]


class HingeLoss(Loss):
    """The sum of max(0, 1 - t x), or of its square, over the batch; t is 1 for the label's score x and -1 for others.

    At the kink the gradient is 0. Caffe: layers/hinge_loss_layer.cpp.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        self._squares = choice(self.param.hinge_loss_param, "norm") == "L2"
        return super().setup(bottoms)

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        scores = rows(bottoms[0].float())
        # Caffe asks only for as many labels as items, and reads the first.
        labels = checked_labels(self, self.labels(bottoms[1])[: len(scores), None], scores.shape[1])
        signs = torch.ones_like(scores).scatter_(1, labels, -1.0)
        # relu, since clamp's gradient at the bound is 1.
        hinges = functional.relu(1 + signs * scores)
        return [(hinges.square() if self._squares else hinges).sum() / len(scores)]


class ContrastiveLoss(Loss):
    """Half of d^2 of pairs alike and of max(margin - d, 0)^2 of others, over the batch.

    The third bottom is not 0 for pairs alike. `legacy_version` takes max(margin - d^2, 0) of others. Both items of a
    pair get a gradient; that of unlike pairs is over d + 1e-4 in place of d. Caffe: layers/contrastive_loss_layer.cpp.
    """

    bottoms = (3, 3)
    constant: ClassVar[Mapping[int, str]] = {2: "labels"}

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        tops = super().setup(bottoms)
        self._margin = self.param.contrastive_loss_param.margin
        self._legacy = self.param.contrastive_loss_param.legacy_version
        first, second, alike = bottoms
        if len(first) < 2 or count(first, 2) != 1 or count(second) != count(first):
            raise self.refuse(
                f"compares items of shapes {first[1:]} and {second[1:]}: both must be one vector"
            )
        if count(alike) != first[0]:
            raise self.refuse(f"has {count(alike)} labels for {first[0]} pairs: give each pair one")
        return tops

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        difference = rows(bottoms[0].float()) - rows(bottoms[1].float())
        alike = self.labels(bottoms[2])[:, None] != 0
        with torch.no_grad():
            squared = difference.square().sum(1, keepdim=True)
            distance = squared.sqrt()
            if self._legacy:
                missing = self._margin - squared
                unlike, slope = missing.clamp(min=0), -torch.ones_like(squared)
            else:
                missing = self._margin - distance
                unlike, slope = missing.clamp(min=0).square(), -missing / (distance + 1e-4)
            loss = torch.where(alike, squared, unlike).sum() / (2 * len(difference))
            slope = torch.where(alike, 1.0, torch.where(missing > 0, slope, 0.0))
            gradient = difference * slope / len(difference)
        return [_WithGradient.apply(difference, loss, gradient)]  # type: ignore[no-untyped-call]


class InfogainLoss(Loss):
    """- sum_l H[label, l] log p_l of the softmax p along `axis`, normalised as SoftmaxWithLoss is.

    H is the third bottom, or a BlobProto in the file `source`. A second top holds p. The gradient is that of the
    unclipped logarithm. Caffe: layers/infogain_loss_layer.cpp.
    """

    bottoms = (2, 3)
    constant: ClassVar[Mapping[int, str]] = {1: "labels", 2: "infogain matrix"}
    tops = (1, 2)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        tops = super().setup(bottoms)
        param, loss_param = self.param.infogain_loss_param, self.param.loss_param
        if loss_param.HasField("normalize"):
            raise self.refuse("has normalize, which it does not take: set normalization instead")
        self._axis = canonical_axis(self, param.axis, bottoms[0])
        self._normalization = choice(loss_param, "normalization")
        self._ignored = _ignored(loss_param)
        labels = bottoms[0][self._axis]
        if count(bottoms[1]) * labels != count(bottoms[0]):
            raise self.refuse(
                f"has {count(bottoms[1])} labels for {count(bottoms[0]) // labels} predictions of "
                f"{labels} classes along axis {self._axis}: give each prediction one"
            )
        self._matrix = None if len(bottoms) > 2 else self._read(param)
        found = count(bottoms[2]) if self._matrix is None else self._matrix.numel()
        if found != labels * labels:
            raise self.refuse(f"has an infogain matrix of {found} values for {labels} classes")
        return [*tops, bottoms[0]][: max(1, len(self.param.top))]

    def _read(self, param: Any) -> Tensor:
        if not param.source:
            raise self.refuse("has no infogain matrix: set source, or give it as third bottom")
        path = Path(param.source)
        if self.place.folder is not None:
            path = self.place.folder / path
        # `blobs` holds BlobProtos, so this makes one of the module that `param` comes from.
        blob = type(self.param)().blobs.add()
        try:
            blob.ParseFromString(path.read_bytes())
        except Exception as error:
            raise self.refuse(f"cannot read its infogain matrix from {path}: {error}") from error
        return torch.tensor(list(blob.data) or list(blob.double_data), dtype=torch.float32)

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        scores = bottoms[0].float()
        classes = scores.shape[self._axis]
        if self._matrix is None:
            matrix = bottoms[2].detach().float()
        else:
            self._matrix = matrix = self._matrix.to(scores.device)
        matrix = matrix.reshape(classes, classes)
        labels = self.labels(bottoms[1])
        with torch.no_grad():
            probabilities = scores.softmax(self._axis)
            by_class = probabilities.movedim(self._axis, -1)
            flat = by_class.reshape(-1, classes)
            counted = torch.ones_like(labels, dtype=torch.bool)
            if self._ignored is not None:
                counted = labels != self._ignored
            index = checked_labels(self, labels.where(counted, 0), classes)
            weights = matrix[index] * counted[:, None]
            normalizer = _normalizer(
                self._normalization,
                counted,
                count(tuple(scores.shape), 0, self._axis),
            )
            loss = -(weights * flat.clamp(min=SMALLEST_PROBABILITY).log()).sum() / normalizer
            gradient = (flat * weights.sum(1, keepdim=True) - weights) / normalizer
            gradient = gradient.reshape(by_class.shape).movedim(-1, self._axis)
        top = _WithGradient.apply(scores, loss, gradient)  # type: ignore[no-untyped-call]
        return [top, probabilities][: max(1, len(self.param.top))]


class MultinomialLogisticLoss(Loss):
    """- log of the label's probability, over the batch.

    The gradient is that of the unclipped logarithm, of the clipped probability.
    Caffe: layers/multinomial_logistic_loss_layer.cpp.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        tops = super().setup(bottoms)
        if count(bottoms[1]) != bottoms[0][0]:
            raise self.refuse(
                f"has {count(bottoms[1])} labels for {bottoms[0][0]} items: give each item one"
            )
        return tops

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        probabilities = rows(bottoms[0].float())
        labels = checked_labels(self, self.labels(bottoms[1])[:, None], probabilities.shape[1])
        with torch.no_grad():
            chosen = probabilities.gather(1, labels).clamp(min=SMALLEST_PROBABILITY)
            loss = -chosen.log().sum() / len(labels)
            gradient = torch.zeros_like(probabilities)
            gradient.scatter_(1, labels, -1 / (len(labels) * chosen))
        return [_WithGradient.apply(probabilities, loss, gradient)]  # type: ignore[no-untyped-call]


class SigmoidCrossEntropyLoss(Loss):
    """The cross-entropy of sigmoid(x) against targets from 0 to 1.

    A target whose whole part is `ignore_label` counts for nothing. Caffe: layers/sigmoid_cross_entropy_loss_layer.cpp.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        tops = super().setup(bottoms)
        loss_param = self.param.loss_param
        if count(bottoms[0]) != count(bottoms[1]):
            raise self.refuse(
                f"compares {count(bottoms[0])} values with {count(bottoms[1])} targets: give each "
                "value one"
            )
        self._ignored = _ignored(loss_param)
        # Unlike elsewhere, the default is BATCH_SIZE.
        if loss_param.HasField("normalization"):
            self._normalization = choice(loss_param, "normalization")
        else:
            self._normalization = "VALID" if loss_param.normalize else "BATCH_SIZE"
        return tops

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        values = bottoms[0].float()
        targets = bottoms[1].detach().float().reshape(values.shape)
        losses = functional.binary_cross_entropy_with_logits(values, targets, reduction="none")
        counted = torch.ones_like(targets, dtype=torch.bool)
        if self._ignored is not None:
            counted = targets.long() != self._ignored
            losses = losses.where(counted, 0.0)
        return [losses.sum() / _normalizer(self._normalization, counted, len(values))]


def _ignored(loss_param: Any) -> int | None:
    return loss_param.ignore_label if loss_param.HasField("ignore_label") else None


def _normalizer(mode: str, counted: Tensor, batch: int) -> Tensor | int:
    """What a sum of losses is divided by, at least 1; `counted` tells which are not ignored."""
    if mode == "FULL":
        return max(1, counted.numel())
    if mode == "VALID":
        return counted.sum().clamp(min=1)
    return max(1, batch) if mode == "BATCH_SIZE" else 1


LAYERS: Final = (
    EuclideanLoss,
    HingeLoss,
    ContrastiveLoss,
    InfogainLoss,
    MultinomialLogisticLoss,
    SigmoidCrossEntropyLoss,
)
