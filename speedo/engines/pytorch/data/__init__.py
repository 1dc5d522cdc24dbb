"""The layers that make records: Caffe's own order, with rank and count, transformed and read ahead.

A file here that declares `LAYERS`, classes named as the types, is found.
"""

from __future__ import annotations

from typing import Final

from caffenets.declared import declared_in
from caffenets.layer import SourceLayer

SOURCES: Final[dict[str, type[SourceLayer]]] = {
    layer.__name__: layer for layers in declared_in(__name__, "LAYERS") for layer in layers
}
