"""The layers that compute, by Caffe's type names; those that read records are not among them.

A file here that declares `LAYERS`, classes named as the types, is found.
"""

from __future__ import annotations

from typing import Final

from caffenets.declared import declared_in
from caffenets.layer import Layer

LAYERS: Final[dict[str, type[Layer]]] = {
    layer.__name__: layer for layers in declared_in(__name__, "LAYERS") for layer in layers
}
