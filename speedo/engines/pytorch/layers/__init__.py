"""The layers that compute, by Caffe's type names; those that read records are in `speedo.engines.pytorch.data`."""

from __future__ import annotations

from speedo.engines.pytorch.layer import Layer
from speedo.engines.pytorch.layers.activation import ReLU
from speedo.engines.pytorch.layers.further import FURTHER
from speedo.engines.pytorch.layers.inner_product import InnerProduct

LAYERS: dict[str, type[Layer]] = {
    "InnerProduct": InnerProduct,
    "ReLU": ReLU,
    **FURTHER,
}
