"""The types of layers that a net may name.

Caffe says which it has. For PyTorch those of Caffe's own are listed here, so that a net is checked without importing
it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from speedo.engines.caffe_import import load_caffe
from speedo.engines.make import EngineName
from speedo.engines.pytorch.refused import REFUSED
from speedo.system import files

# Caffe: layer_factory.hpp and the files in layers/, by REGISTER_LAYER_CLASS and REGISTER_LAYER_CREATOR.
CAFFE_LAYERS: Final = (
    "AbsVal", "Accuracy", "ArgMax", "BNLL", "BatchNorm", "BatchReindex", "Bias", "Clip", "Concat", "ContrastiveLoss",
    "Convolution", "Crop", "Data", "Deconvolution", "Dropout", "DummyData", "ELU", "Eltwise", "Embed", "EuclideanLoss",
    "Exp", "Filter", "Flatten", "HDF5Data", "HDF5Output", "HingeLoss", "Im2col", "ImageData", "InfogainLoss",
    "InnerProduct", "Input", "LRN", "LSTM", "LSTMUnit", "Log", "MVN", "MemoryData", "MultinomialLogisticLoss", "PReLU",
    "Parameter", "Pooling", "Power", "Python", "RNN", "ReLU", "Reduction", "Reshape", "SPP", "Scale", "Sigmoid",
    "SigmoidCrossEntropyLoss", "Silence", "Slice", "Softmax", "SoftmaxWithLoss", "Split", "Swish", "TanH", "Threshold",
    "Tile", "WindowData",
)  # fmt: skip


def layer_types(engine: EngineName) -> Sequence[str]:
    """All types that are known; with pycaffe also those of a Caffe of the user's own."""
    return list(load_caffe().layer_type_list()) if engine == "caffe" else CAFFE_LAYERS


def refusals(engine: EngineName) -> Mapping[str, str]:
    """The types that the engine does not have though Caffe does: why, and what to do."""
    return REFUSED if engine == "torch" else {}


def line_of_layer(file: str, name: str) -> str:
    """`, line 12` where this file names the layer; empty where that is not found."""
    try:
        text = files.read_bytes(Path(file), files.MOST_TEXT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    found = re.search(rf"""\bname\s*:\s*(["']){re.escape(name)}\1""", text)
    return "" if found is None else f", line {text.count(chr(10), 0, found.start()) + 1}"
