"""Further families of layers, which `speedo.engines.pytorch.layers` merges into its table, and what is refused."""

from __future__ import annotations

from speedo.engines.pytorch.layer import Layer
from speedo.engines.pytorch.layers.inputs import Input, Parameter
from speedo.engines.pytorch.layers.losses import (
    ContrastiveLoss,
    EuclideanLoss,
    HingeLoss,
    InfogainLoss,
    MultinomialLogisticLoss,
    SigmoidCrossEntropyLoss,
)
from speedo.engines.pytorch.layers.recurrent import LSTM, RNN, LSTMUnit
from speedo.engines.pytorch.layers.reductions import MVN, ArgMax, Eltwise, Reduction
from speedo.engines.pytorch.layers.selection import BatchReindex, Embed, Filter
from speedo.engines.pytorch.layers.shapes import Concat, Crop, Flatten, Reshape, Slice, Tile

FURTHER: dict[str, type[Layer]] = {
    "ArgMax": ArgMax,
    "BatchReindex": BatchReindex,
    "Concat": Concat,
    "ContrastiveLoss": ContrastiveLoss,
    "Crop": Crop,
    "Eltwise": Eltwise,
    "Embed": Embed,
    "EuclideanLoss": EuclideanLoss,
    "Filter": Filter,
    "Flatten": Flatten,
    "HingeLoss": HingeLoss,
    "InfogainLoss": InfogainLoss,
    "Input": Input,
    "LSTM": LSTM,
    "LSTMUnit": LSTMUnit,
    "MVN": MVN,
    "MultinomialLogisticLoss": MultinomialLogisticLoss,
    "Parameter": Parameter,
    "RNN": RNN,
    "Reduction": Reduction,
    "Reshape": Reshape,
    "SigmoidCrossEntropyLoss": SigmoidCrossEntropyLoss,
    "Slice": Slice,
    "Tile": Tile,
}

# Types of Caffe that this engine does not have, with the reason and the remedy: the end of a sentence that begins with
# the layer's name and type.
REFUSED: dict[str, str] = {
    "HDF5Output": "writes a file at each forward pass, which only pycaffe does: remove it, or use --engine caffe",
    "MemoryData": "is fed by C++ or Python code around the net, which a run does not have: use Data or HDF5Data",
    "Python": "calls code written for pycaffe's blobs: use --engine caffe",
    "WindowData": "reads windows of images by a list of regions, which only pycaffe does: use --engine caffe",
}
