"""The layers that compute, by Caffe's type names; those that read records are in `speedo.engines.pytorch.data`."""

from __future__ import annotations

from speedo.engines.pytorch.layer import Layer
from speedo.engines.pytorch.layers.activation import (
    BNLL,
    ELU,
    AbsVal,
    Clip,
    Dropout,
    Exp,
    Log,
    Power,
    PReLU,
    ReLU,
    Sigmoid,
    Swish,
    TanH,
    Threshold,
)
from speedo.engines.pytorch.layers.batch_norm import BatchNorm
from speedo.engines.pytorch.layers.convolution import Convolution, Deconvolution, Im2col
from speedo.engines.pytorch.layers.further import FURTHER
from speedo.engines.pytorch.layers.inner_product import InnerProduct
from speedo.engines.pytorch.layers.lrn import LRN
from speedo.engines.pytorch.layers.plumbing import Silence, Split
from speedo.engines.pytorch.layers.pooling import SPP, Pooling
from speedo.engines.pytorch.layers.scale_bias import Bias, Scale
from speedo.engines.pytorch.layers.softmax import Accuracy, Softmax, SoftmaxWithLoss

LAYERS: dict[str, type[Layer]] = {
    "AbsVal": AbsVal,
    "Accuracy": Accuracy,
    "BNLL": BNLL,
    "BatchNorm": BatchNorm,
    "Bias": Bias,
    "Clip": Clip,
    "Convolution": Convolution,
    "Deconvolution": Deconvolution,
    "Dropout": Dropout,
    "ELU": ELU,
    "Exp": Exp,
    "Im2col": Im2col,
    "InnerProduct": InnerProduct,
    "LRN": LRN,
    "Log": Log,
    "PReLU": PReLU,
    "Pooling": Pooling,
    "Power": Power,
    "ReLU": ReLU,
    "SPP": SPP,
    "Scale": Scale,
    "Sigmoid": Sigmoid,
    "Silence": Silence,
    "Softmax": Softmax,
    "SoftmaxWithLoss": SoftmaxWithLoss,
    "Split": Split,
    "Swish": Swish,
    "TanH": TanH,
    "Threshold": Threshold,
    **FURTHER,
}
