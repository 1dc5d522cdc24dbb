"""The layers that compute, by Caffe's type names; those that read records are in `speedo.engines.pytorch.data`.

A file here that declares `LAYERS`, classes named as the types, is found.
"""

from __future__ import annotations

from typing import Final

from speedo.engines.pytorch.layer import Layer
from speedo.system.declared import declared_in

LAYERS: Final[dict[str, type[Layer]]] = {
    layer.__name__: layer for layers in declared_in(__name__, "LAYERS") for layer in layers
}
