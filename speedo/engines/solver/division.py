"""What the prototxt alone says of dividing a batch of records over workers, and of records in another order.

Whether the parts of a batch give Caffe's step is tried (`speedo.engines.batch_division`). Here stands what a trial of
a few records cannot show: losses that count labels, and layers for which the order of the records matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from caffenets.known_types import normalizes_by_batch, type_here

# Caffe: layers/recurrent_layer.cpp. Rows are time steps, and the state continues from batch to batch.
_RECURRENT: Final = frozenset({"LSTM", "RNN"})
_VALID_BY_DEFAULT: Final = frozenset({"SoftmaxWithLoss", "InfogainLoss"})
# py-faster-rcnn: lib/rpn.
_DRAWN_FROM_BATCH: Final = frozenset({"AnchorTarget", "ProposalTarget"})


def obstacle_to_parts(net: Any) -> str:
    """The first layer of a train net that computes with its whole batch, as a clause; empty if none does."""
    for layer in net.layer:
        name = f"layer {layer.name!r} ({layer.type})"
        if _counts_labels(layer):
            return f"{name} divides by the labels of its batch that are not ignore_label"
        if layer.type == "MultiBoxLoss" and _is_valid(layer.loss_param, usual=True):
            return f"{name} divides by the matched boxes of its batch"
        if type_here(layer) in _DRAWN_FROM_BATCH:
            return f"{name} draws what is trained from its batch"
        if normalizes_by_batch(layer):
            return f"{name} normalizes by the statistics of its batch"
        if layer.type == "CenterLoss":
            return f"{name} moves centers by how often their class is in its batch"
        if layer.type == "Filter":
            return f"{name} keeps another number of records in each batch"
    return ""


def order_of_records(net: Any) -> str:
    """The first layer whose result depends on which records follow each other, as a clause; empty if none does."""
    for layer in net.layer:
        name = f"layer {layer.name!r} ({layer.type})"
        if layer.type in _RECURRENT:
            return f"{name} reads rows as time steps"
        if layer.type == "Slice" and _axis(layer.slice_param, "slice_dim") == 0:
            return f"{name} cuts the batch"
        if layer.type == "Concat" and _axis(layer.concat_param, "concat_dim") == 0:
            return f"{name} lengthens the batch"
        if layer.type == "BatchReindex":
            return f"{name} picks records of the batch by their place"
    return ""


def state_between_batches(nets: Iterable[Any]) -> str:
    """The first layer of these nets that may carry something from one batch into the next, as a clause."""
    for net in nets:
        for layer in net.layer:
            if layer.type in _RECURRENT:
                return f"layer {layer.name!r} ({layer.type}) continues from one batch to the next"
            if type_here(layer) == "Python" and layer.bottom:
                return f"layer {layer.name!r} (Python) may count over batches"
    return ""


def scale_losses(net: Any, factor: float) -> None:
    """Multiply the weight of every loss in place."""
    for layer in net.layer:
        # Caffe: layers/loss_layer.cpp. The first top has the weight 1 where the prototxt gives none.
        if layer.type.endswith("Loss") and not layer.loss_weight:
            layer.loss_weight.append(1.0)
        for top, weight in enumerate(layer.loss_weight):
            layer.loss_weight[top] = weight * factor


def _counts_labels(layer: Any) -> bool:
    """Caffe: layers/softmax_loss_layer.cpp, sigmoid_cross_entropy_loss_layer.cpp, LayerSetUp."""
    if layer.type not in _VALID_BY_DEFAULT and layer.type != "SigmoidCrossEntropyLoss":
        return False
    loss = layer.loss_param
    return loss.HasField("ignore_label") and _is_valid(loss, layer.type in _VALID_BY_DEFAULT)


def _is_valid(loss: Any, usual: bool) -> bool:
    """Whether the normalization of a LossParameter is VALID."""
    if loss.HasField("normalization"):
        return bool(loss.normalization == loss.VALID)
    return bool(loss.normalize) if loss.HasField("normalize") else usual


def _axis(settings: Any, old_name: str) -> int:
    """The axis of a Slice or Concat layer; `old_name` is that of the field before Caffe had axes."""
    return int(getattr(settings, old_name) if settings.HasField(old_name) else settings.axis)
