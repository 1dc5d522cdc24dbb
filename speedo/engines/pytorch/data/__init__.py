"""The layers that make records: Caffe's own order, with rank and count, transformed and read ahead."""

from __future__ import annotations

from typing import Final

from speedo.engines.pytorch.data.datums import Data
from speedo.engines.pytorch.data.dummy import DummyData
from speedo.engines.pytorch.data.hdf5 import HDF5Data
from speedo.engines.pytorch.data.images import ImageData
from speedo.engines.pytorch.layer import SourceLayer

SOURCES: Final[dict[str, type[SourceLayer]]] = {
    "Data": Data,
    "DummyData": DummyData,
    "HDF5Data": HDF5Data,
    "ImageData": ImageData,
}
