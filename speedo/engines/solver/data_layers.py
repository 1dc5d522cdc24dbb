"""What the data layers of a solver's nets read: files, how many records, and whether these have numbers."""

from __future__ import annotations

import os
from typing import Any

import lmdb

from caffenets.data_layers import PLACEABLE, SOURCES, batch_of, data_layers, net_batch, source_of
from caffenets.files import open_to_read, read_names
from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text
from caffenets.shared_lmdb import SharedLmdb
from speedo.engines.solver.conversion import DATABASES, conversion_of, reads_leveldb
from speedo.engines.solver.spec import SolverSpec
from speedo.errors import DataError


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
