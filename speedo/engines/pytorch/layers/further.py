"""Further families of layers, which `speedo.engines.pytorch.layers` merges into its table."""

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
