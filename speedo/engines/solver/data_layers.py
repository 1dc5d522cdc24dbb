"""The data layers of a net: batch size, source, and number of records.

One table holds what differs between layer types.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final

import lmdb

from caffenets.files import open_to_read, read_names
from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text, set_field
from speedo.engines.solver.conversion import DATABASES, conversion_of, reads_leveldb
from speedo.engines.solver.spec import SolverSpec
from speedo.errors import DataError
from speedo.system.shared_lmdb import SharedLmdb

# Layer type -> the parameter that holds `source` and `batch_size`.
SOURCES: Final = {
    "Data": "data_param",
    "AnnotatedData": "data_param",
    "HDF5Data": "hdf5_data_param",
    "ImageData": "image_data_param",
    "WindowData": "window_data_param",
}
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
    return layer.type in SOURCES or (layer.type in ("DummyData", "Python") and not layer.bottom)


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


def undivided(spec: SolverSpec) -> tuple[str, ...]:
    """The data layers of the train net of which every worker reads all that a single Caffe would, as words."""
    parameter = parse_text(spec.text, caffe_schema().SolverParameter())
    return tuple(
        f"layer {layer.name!r} ({layer.type})"
        for layer in data_layers(parameter.train_net_param)
        if layer.type in ("WindowData", "Python")
    )


def obstacle_to_placing(spec: SolverSpec) -> str:
    """The first layer of the train net whose records cannot be read by their numbers, as a clause; empty if none is."""
    parameter = parse_text(spec.text, caffe_schema().SolverParameter())
    net = parameter.train_net_param
    for layer in data_layers(net):
        name = f"layer {layer.name!r} ({layer.type})"
        if layer.type == "DummyData":
            continue
        if layer.type not in PLACEABLE:
            return f"{name} has no records with numbers"
        if batch_of(layer) != net_batch(net):
            return f"{name} has another batch_size than the layer before it"
        if layer.type not in DATABASES and getattr(layer, SOURCES[layer.type]).shuffle:
            return f"{name} shuffles its records"
    return ""


def source_of(layer: Any) -> str:
    """The file or database that the layer reads, as it is written; empty for one without."""
    return str(getattr(layer, SOURCES[layer.type]).source) if layer.type in SOURCES else ""


def files_named(spec: SolverSpec) -> tuple[str, ...]:
    """Databases, lists and mean files that the nets name, as they are written, each once."""
    parameter = parse_text(spec.text, caffe_schema().SolverParameter())
    found: dict[str, None] = {}
    for net in (parameter.train_net_param, *parameter.test_net_param):
        for layer in net.layer:
            for name in (source_of(layer), str(layer.transform_param.mean_file)):
                if name:
                    found[name] = None
    return tuple(found)


def count_records(spec: SolverSpec) -> int | None:
    """Training records: the entries of the first data layer's database, the lines of its image list, or the rows of
    its HDF5 files.

    None where the records would have to be read to count them, or one of these cannot be read.
    """
    parameter = parse_text(spec.text, caffe_schema().SolverParameter())
    for layer in parameter.train_net_param.layer:
        if layer.type in DATABASES:
            found = spec.search.find(layer.data_param.source)
            if found is None:
                return None
            try:
                if reads_leveldb(layer):
                    found = conversion_of(found)
                if not os.path.isfile(found / "data.mdb" if found.is_dir() else found):
                    return None  # LMDB waits for what comes out of a pipe
                with SharedLmdb(found) as database:
                    return int(database.stat()["entries"])
            except (lmdb.Error, DataError):
                return None
        if layer.type == "ImageData":
            found = spec.search.find(layer.image_data_param.source)
            if found is not None:
                try:
                    with open_to_read(found) as lines:
                        return sum(1 for line in lines if line.strip())
                except OSError:
                    return None
        if layer.type == "HDF5Data":
            return _count_rows(layer, spec)
    return None


def _count_rows(layer: Any, spec: SolverSpec) -> int | None:
    """The rows of an HDF5Data layer's files: all its tops have as many (Caffe: layers/hdf5_data_layer.cpp)."""
    import h5py

    found = spec.search.find(layer.hdf5_data_param.source)
    if found is None or not layer.top:
        return None
    rows = 0
    try:
        for name in read_names(found):
            file = spec.search.find(name)
            if file is None or not file.is_file():
                return None
            with h5py.File(file, "r", locking=False) as opened:
                rows += int(opened[layer.top[0]].shape[0])
    except (OSError, KeyError, AttributeError, IndexError, RuntimeError):
        return None
    return rows or None
