"""The layers of Caffe that this engine does not have. Nothing here needs PyTorch: a solver is checked without it."""

from __future__ import annotations

from typing import Final

# Types of Caffe that this engine does not have, with the reason and the remedy: the end of a sentence that begins with
# the layer's name and type.
REFUSED: Final[dict[str, str]] = {
    "HDF5Output": "writes a file at each forward pass, which only pycaffe does: remove it, or use --engine caffe",
    "MemoryData": "is fed by C++ or Python code around the net, which a run does not have: use Data or HDF5Data",
    "Python": "calls code written for pycaffe's blobs: use --engine caffe",
    "WindowData": "reads windows of images by a list of regions, which only pycaffe does: use --engine caffe",
}
