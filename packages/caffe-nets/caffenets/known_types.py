"""Types of layers of Caffe that no file in `layers` computes, or one under another name.

Nothing here needs PyTorch: a net is checked without it.
"""

from __future__ import annotations

from typing import Any, Final

from caffenets import host_program

# The end of a sentence that begins with the layer's name and type.
_REFUSED: Final[dict[str, str]] = {
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
