"""Softmax, its loss, and Accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from caffenets.forms.onnx_graph import Graph
from caffenets.forms.torch_code import Code
from caffenets.layer import Layer, Shape
from caffenets.layers.axes import canonical_axis, count
from caffenets.layers.bottoms import checked_labels
from caffenets.layers.losses import loss_of_parts
from caffenets.torch_later import Function, Tensor, torch, without_gradient

_LEAST = 2.0**-126  # FLT_MIN, below which Caffe takes no logarithm


class Softmax(Layer):
    """exp(x) over its sum along `axis`. Caffe: layers/softmax_layer.cpp."""

    in_place = True

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        self._axis = canonical_axis(self, self.param.softmax_param.axis, bottoms[0])
        return [bottoms[0]]

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.softmax(bottoms[0].float(), self._axis)]

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        return [graph.add("Softmax", bottoms[0], axis=self._axis)]

    def source(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        return [f"torch.softmax({bottoms[0]}, {self._axis})"]


class _Labelled(Layer):
    """A layer with scores, and a label for each place outside of their class axis."""

    bottoms: ClassVar[tuple[int, int | None]] = (2, 2)
    constant: ClassVar[Mapping[int, str]] = {1: "labels"}
    _ignored: int | None = None
    tops: ClassVar[tuple[int, int | None]] = (1, 2)

    def read(self, axis: int, bottoms: Sequence[Shape]) -> None:
        """Sets the axis of the classes, and how many there are; checks that there are as many labels."""
        scores, labels = bottoms
        self._axis = axis = canonical_axis(self, axis, scores)
        self._classes = scores[axis]
        predictions = count(scores, 0, axis) * count(scores, axis + 1)
        if predictions != count(labels):
            raise self.refuse(
                f"has {count(labels)} labels for {predictions} predictions of shape {scores}: "
                "give one label for each, or change axis"
            )

    def scores_and_labels(self, bottoms: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Scores (outer, classes, inner) in float32, and labels (outer, 1, inner) as whole numbers."""
        shape = tuple(bottoms[0].shape)
        outer, inner = count(shape, 0, self._axis), count(shape, self._axis + 1)
        scores = bottoms[0].reshape(outer, self._classes, inner).float()
        return scores, bottoms[1].detach().reshape(outer, 1, inner).long()

    def indices(self, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """The labels, 0 for those that are ignored; and which are not, or None for all."""
        valid = None if self._ignored is None else labels != self._ignored
        index = labels if valid is None else labels * valid
        return checked_labels(self, index, self._classes), valid


class SoftmaxWithLoss(_Labelled):
    """The mean of -log softmax at each label; a second top has the softmax, without a gradient.

    As in Caffe the logarithm stops at FLT_MIN (a loss of 87.34), the gradient does not. With `weight_by_label_freqs`
    each is multiplied by its label's `class_weighting` (SegNet's Caffe). Caffe: layers/softmax_loss_layer.cpp.
    """

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        loss = self.param.loss_param
        self.read(self.param.softmax_param.axis, bottoms)
        if bottoms[0][:1] != bottoms[1][:1]:
            raise self.refuse(
                f"has scores {bottoms[0]} and labels {bottoms[1]}: their first axes must be equal"
            )
        self._ignored = loss.ignore_label if loss.HasField("ignore_label") else None
        if loss.HasField("normalize") and not loss.HasField("normalization"):
            self._normalization = "VALID" if loss.normalize else "BATCH_SIZE"
        else:
            kinds = loss.DESCRIPTOR.fields_by_name["normalization"].enum_type
            self._normalization = str(kinds.values_by_number[loss.normalization].name)
        self._weights: Tensor | None = None
        if getattr(loss, "weight_by_label_freqs", False):
            self._weights = torch.tensor(list(loss.class_weighting))
            if len(self._weights) != self._classes:
                raise self.refuse(
                    f"has {len(self._weights)} class_weighting for {self._classes} classes: give one for each"
                )
        return [(), bottoms[0]][: len(self.param.top)]

    def loss_of_parts(self) -> str:
        return loss_of_parts(self._normalization, self._ignored)

    def counted(self, *bottoms: Tensor) -> Tensor:
        return bottoms[0].long().ne(self._ignored or 0).sum()

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        scores, labels = self.scores_and_labels(bottoms)
        divisor = {"FULL": labels.numel(), "BATCH_SIZE": len(labels), "NONE": 1}.get(
            self._normalization
        )
        index, valid = self.indices(labels)
        weights = None if self._weights is None else self._weights.to(scores)[index]
        loss, probability = _SoftmaxLoss.apply(scores, index, valid, divisor, weights)  # type: ignore[no-untyped-call]
        return [loss, probability.reshape(bottoms[0].shape)][: len(self.param.top)]


class _SoftmaxLoss(Function):
    """Loss and softmax of (outer, classes, inner); `divisor` is None for the number of labels that count.

    `weights` are factors of the losses.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        index: Tensor,
        valid: Tensor | None,
        divisor: int | None,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        probability = torch.softmax(scores, 1)
        losses = probability.gather(1, index).clamp_min_(_LEAST).log_().neg_()
        counted = valid if weights is None else weights if valid is None else valid * weights
        if counted is not None:
            losses *= counted
        if divisor is None and valid is not None:
            ctx.divisor = valid.sum().clamp_min_(1)
        else:
            ctx.divisor = max(1, index.numel() if divisor is None else divisor)
        ctx.save_for_backward(probability, index, counted)
        ctx.mark_non_differentiable(probability)
        return losses.sum() / ctx.divisor, probability

    @staticmethod
    def backward(ctx: Any, *top_diffs: Tensor) -> Any:
        probability, index, counted = ctx.saved_tensors
        factor = top_diffs[0] / ctx.divisor
        minus = factor.neg() if counted is None else counted * -factor
        diff = probability * (factor if counted is None else counted * factor)
        diff.scatter_add_(1, index, minus.expand(index.shape))
        return diff, None, None, None, None


class Accuracy(_Labelled):
    """The part of labels that are among the `top_k` scores, ties counted against them; a second top has it by class.

    NaN if a score is NaN, where Caffe's answers 1.0. Caffe: layers/accuracy_layer.cpp.
    """

    constant: ClassVar[Mapping[int, str]] = {0: "scores", 1: "labels"}

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.accuracy_param
        self.read(param.axis, bottoms)
        if param.top_k > self._classes:
            raise self.refuse(f"has top_k {param.top_k} of {self._classes} classes: use less")
        self._ignored = param.ignore_label if param.HasField("ignore_label") else None
        return [(), (self._classes,)][: len(self.param.top)]

    @without_gradient
    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        scores, labels = self.scores_and_labels(bottoms)
        index, valid = self.indices(labels)
        valid = torch.ones_like(index, dtype=torch.bool) if valid is None else valid
        true = scores.gather(1, index)
        better = (scores >= true).sum(1, keepdim=True) - 1  # the label itself is among them
        right = ((better < self.param.accuracy_param.top_k) & valid).float()
        right = torch.where(scores.isnan().any(), torch.nan, right)
        counted = valid.float()
        tops = [right.sum() / counted.sum().clamp_min(1)]
        if len(self.param.top) > 1:
            by_class = scores.new_zeros(2, self._classes)
            by_class[0].scatter_add_(0, index.flatten(), right.flatten())
            by_class[1].scatter_add_(0, index.flatten(), counted.flatten())
            tops.append(by_class[0] / by_class[1].clamp_min(1))
        return tops


LAYERS: Final = (Softmax, SoftmaxWithLoss, Accuracy)
