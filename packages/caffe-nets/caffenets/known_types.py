"""Types of layers of Caffe that no file in `layers` computes, or one under another name.

Nothing here needs PyTorch: a net is checked without it.
"""

from __future__ import annotations

from typing import Any, Final

from caffenets import host_program

# The end of a sentence that begins with the layer's name and type.
_REFUSED: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("DenseImageData", "ImageSegData", "ImageLabelmapData"),
        "reads images with an image of labels each: put two Data layers in its place, of a database of each",
    ),
    **dict.fromkeys(
        ("BoxAnnotatorOHEM", "SmoothL1LossOHEM", "SoftmaxWithLossOHEM"),
        "chooses the regions with the largest losses: take the net that trains without OHEM",
    ),
    **dict.fromkeys(
        ("CTCLoss", "CtcLoss", "WarpCTC", "WarpCTCLoss", "WarpCtcLoss"),
        "compares sequences in training: take the deploy net, without it",
    ),
    "ContinuationIndicator": "marks where sequences begin: put an Input layer of (time_step, batch_size) in its place, "
    "and give it 0 in the first row and 1 in the others",
    "MarginInnerProduct": "sets classes apart in training alone: use InnerProduct",
    "SegAccuracy": "measures by class: use Accuracy, whose second top does",
    "SpatialDropout": "zeroes whole channels in training: use Dropout",
    "HDF5Output": "writes its bottoms to a file at every step, which is not done here: remove it, or {caffe}",
    "MemoryData": "waits for records from a program around the net: use Data, HDF5Data or ImageData",
    "Python": "runs code that was written for pycaffe's blobs: {caffe}",
    "WindowData": "cuts windows out of images, which only Caffe's own reader does: {caffe}",
}

# Layers that are written in Python for pycaffe, and are computed here: module and class, and type. Those here are
# py-faster-rcnn's.
NATIVE_PYTHON: Final[dict[tuple[str, str], str]] = {
    ("rpn.proposal_layer", "ProposalLayer"): "Proposal",
    ("rpn.anchor_target_layer", "AnchorTargetLayer"): "AnchorTarget",
    ("rpn.proposal_target_layer", "ProposalTargetLayer"): "ProposalTarget",
}


def refusals() -> dict[str, str]:
    """Of each type that is not computed why, and what to do."""
    return {kind: what.format(caffe=host_program.caffe_itself()) for kind, what in _REFUSED.items()}


def type_here(layer: Any) -> str:
    """The type by which a LayerParameter's layer is computed."""
    kind = str(layer.type)
    if kind != "Python":
        return kind
    return NATIVE_PYTHON.get((layer.python_param.module, layer.python_param.layer), kind)


def normalizes_by_batch(layer: Any) -> bool:
    """Whether this layer normalizes a batch in training by the statistics of that."""
    if layer.type == "BN":
        return not layer.bn_param.frozen
    return layer.type == "BatchNorm" and not layer.batch_norm_param.use_global_stats
