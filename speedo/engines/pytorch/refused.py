"""The layers of Caffe that this engine does not have. Nothing here needs PyTorch: a solver is checked without it."""

from __future__ import annotations

from typing import Final

# Types of Caffe that this engine does not have: the end of a sentence that begins with the layer's name and type.
REFUSED: Final[dict[str, str]] = {
    "HDF5Output": "writes its bottoms to a file at every step, which this engine does not: remove it, "
    "or use --engine caffe",
    "MemoryData": "waits for records from a program around the net, and a run has none: "
    "use Data, HDF5Data or ImageData",
    "Python": "runs code that was written for pycaffe's blobs: use --engine caffe",
    "WindowData": "cuts windows out of images, which only Caffe's own reader does: use --engine caffe",
}
