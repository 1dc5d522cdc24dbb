"""The layers that make records: Caffe's own order, with rank and count, transformed and read ahead.

A file here that declares `LAYERS`, classes named as the types, is found.
"""

from __future__ import annotations

from typing import Final

from speedo.engines.pytorch.layer import SourceLayer
from speedo.system.declared import declared_in

SOURCES: Final[dict[str, type[SourceLayer]]] = {
    layer.__name__: layer for layers in declared_in(__name__, "LAYERS") for layer in layers
}
