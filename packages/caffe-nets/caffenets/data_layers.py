"""The layers of a net that bring records: batch size and source. One table holds what differs between their types."""

from __future__ import annotations

import re
from typing import Any, Final

from caffenets.prototxt.text import set_field

# Layer type -> the parameter that holds `source` and `batch_size`.
SOURCES: Final = {
    "Data": "data_param",
    "AnnotatedData": "data_param",
    "HDF5Data": "hdf5_data_param",
    "ImageData": "image_data_param",
    "WindowData": "window_data_param",
}
# Of other Caffes: their records are not read here, and their batch is not known.
_UNREAD: Final = frozenset(
    """
    BoxData CPMData CustomData DenseImageData DetectNetTransformation ImageLabelData ImageLabelmapData ImageSegData
    MatRead MultiLabelImageData TripletData VideoData
    """.split()  # noqa: SIM905
)
# Those whose records have numbers, so that they can be read from any of them on.
PLACEABLE: Final = ("Data", "AnnotatedData", "HDF5Data", "ImageData")
# They wait for records from a program that SpeeDO does not have.
FED_FROM_OUTSIDE: Final = ("MemoryData", "Input")
# A Python layer's batch can be known and set only where its param_str names it.
_PARAM_STR_BATCH: Final = re.compile(
    r"""(batch_?size['"]?\s*[:=]\s*['"]?)(\d{1,18})(?!\d)""", re.IGNORECASE
)


def data_layers(net: Any) -> list[Any]:
    """The layers of a filtered net that read or make records."""
    return [layer for layer in net.layer if is_data_layer(layer)]


def is_data_layer(layer: Any) -> bool:
    """Whether the layer has no input and brings records."""
    alone = layer.type in ("DummyData", "Python") or layer.type in _UNREAD
    return layer.type in SOURCES or (alone and not layer.bottom)


def batch_of(layer: Any) -> int:
    """Records of one batch of this data layer; 0 where the prototxt does not say."""
    if layer.type in SOURCES:
        return int(getattr(layer, SOURCES[layer.type]).batch_size)
    if layer.type == "DummyData":
        dummy = layer.dummy_data_param
        if dummy.shape and dummy.shape[0].dim:
            return int(dummy.shape[0].dim[0])
        return int(dummy.num[0]) if dummy.num else 0
    found = _PARAM_STR_BATCH.search(layer.python_param.param_str)
    return int(found[2]) if found else 0


def set_batch(layer: Any, batch_size: int) -> None:
    """Set the layer's batch size; no effect if `batch_of` is 0."""
    if layer.type in SOURCES:
        set_field(getattr(layer, SOURCES[layer.type]), "batch_size", batch_size)
    elif layer.type == "DummyData":
        dummy = layer.dummy_data_param
        for shape in dummy.shape:
            if shape.dim:
                shape.dim[0] = batch_size
        for index in range(len(dummy.num)):
            dummy.num[index] = batch_size
    else:
        layer.python_param.param_str = _PARAM_STR_BATCH.sub(
            lambda match: f"{match[1]}{batch_size}", layer.python_param.param_str
        )


def net_batch(net: Any) -> int:
    """The batch of the net's first data layer that has one; 0 if none has."""
    return next((batch for layer in data_layers(net) if (batch := batch_of(layer))), 0)


def set_net_batch(net: Any, batch_size: int) -> None:
    """Set the batch of every data layer that has the net's batch now."""
    # A DummyData layer of another extent is a constant of the model, not a batch.
    present = net_batch(net)
    for layer in data_layers(net):
        if batch_of(layer) == present:
            set_batch(layer, batch_size)


def source_of(layer: Any) -> str:
    """The file or database that the layer reads, as it is written; empty for one without."""
    return str(getattr(layer, SOURCES[layer.type]).source) if layer.type in SOURCES else ""
