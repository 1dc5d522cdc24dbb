"""Types of layers of Caffe that this engine does not have, or has under another name.

Nothing here needs PyTorch: a solver is checked without it.
"""

from __future__ import annotations

from typing import Any, Final

ONNX_LAYER: Final = "speedo.engines.onnx_layer"  # of the test nets that `speedo test --int8` makes

# Types of Caffe that this engine does not have: the end of a sentence that begins with the layer's name and type.
REFUSED: Final[dict[str, str]] = {
    "HDF5Output": "writes its bottoms to a file at every step, which this engine does not: remove it, "
    "or use --engine caffe",
    "MemoryData": "waits for records from a program around the net, and a run has none: "
    "use Data, HDF5Data or ImageData",
    "Python": "runs code that was written for pycaffe's blobs: use --engine caffe",
    "WindowData": "cuts windows out of images, which only Caffe's own reader does: use --engine caffe",
}

# Layers that are written in Python for pycaffe, and are part of this engine: module and class, and type. The first
# three are py-faster-rcnn's.
NATIVE_PYTHON: Final[dict[tuple[str, str], str]] = {
    ("rpn.proposal_layer", "ProposalLayer"): "Proposal",
    ("rpn.anchor_target_layer", "AnchorTargetLayer"): "AnchorTarget",
    ("rpn.proposal_target_layer", "ProposalTargetLayer"): "ProposalTarget",
    (ONNX_LAYER, "OnnxNet"): "OnnxNet",
}


def type_here(layer: Any) -> str:
    """The type of a LayerParameter in this engine."""
    kind = str(layer.type)
    if kind != "Python":
        return kind
    return NATIVE_PYTHON.get((layer.python_param.module, layer.python_param.layer), kind)
