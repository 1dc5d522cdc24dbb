"""The types of layers that a net may name.

Caffe says which it has. For PyTorch those of Caffe's own are listed here, so that a misspelled one is found without
importing PyTorch; the ones that its engine refuses are told when the net is built (`speedo.engines.net_trial`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from speedo.engines.caffe_import import load_caffe
from speedo.engines.make import EngineName

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
