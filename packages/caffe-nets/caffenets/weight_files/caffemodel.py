"""Reads and writes Caffe's `.caffemodel`, and reads `.caffemodel.h5`, without Caffe.

Field numbers: Caffe, src/caffe/proto/caffe.proto. A packed list of floats has the same form as a field of bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from caffenets.caffe_schema import caffe_pb2
from caffenets.errors import EngineError
from caffenets.weight_files import hdf5, wire
from caffenets.weight_files.stored import (
    FLOAT32,
    DamagedError,
    Shape,
    Stored,
    Table,
    Values,
    reading,
    shape_text,
    size_of,
)

LIMIT: Final = 2**31 - 1  # bytes of a protobuf message
_LAYERS, _LAYER, _BLOBS, _DATA, _SHAPE = 2, 100, 7, 5, 7  # numbers of fields
_REMEDY: Final = "give the weights of this net, or rename the layer to train it from its fillers"


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer of a file: its name, and its blobs in the shapes that the file gives them, not read yet.

    `legacy` are the indices of blobs with the four numbers of old files for a shape: axes of 1 in front do not count.
    None stands for a blob that a layer in HDF5 lacks, because it shares it with another.
    """

    name: str
    blobs: tuple[Stored | None, ...]
    legacy: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Model:
    """The layers of a trained net, in the file's order; one without parameters has no blobs."""

    path: Path
    layers: tuple[StoredLayer, ...]
    hdf5: bool = False


def read_model(path: Path) -> Model:
    """The model in a `.caffemodel` of any age or a `.caffemodel.h5`; which of them it is, its content says.

    Old formats are read as Caffe upgrades them (Caffe: util/upgrade_proto.cpp). Values of double precision are rounded.
    Raises `EngineError` for a file that cannot be read, is damaged, or is beyond protobuf's limit.
    """
    with reading(path, "a .caffemodel") as file:
        if not file.peek(len(hdf5.SIGNATURE)).startswith(hdf5.SIGNATURE):
            return Model(path, _read_binary(file, path))
    return Model(
        path,
        tuple(StoredLayer(name, blobs) for name, blobs in hdf5.read_layers(path)),
        hdf5=True,
    )


def write_model(
    file: IO[bytes], net_name: str, layers: Iterable[tuple[Any, Sequence[Values]]]
) -> None:
    """Write a binary `.caffemodel` that Caffe loads: each layer's LayerParameter with the arrays of its blobs.

    `EngineError` if it would be beyond protobuf's limit: then nothing is written. Raises `OSError`.
    """
    written = [_layer_parts(parameter, blobs) for parameter, blobs in layers]
    parts = [caffe_pb2.NetParameter(name=net_name).SerializeToString()]
    for layer in written:
        parts += [_head(_LAYER, sum(map(len, layer))), *layer]
    total = sum(map(len, parts))
    if total > LIMIT:
        raise EngineError(
            f"the model has {total:,} bytes, but a .caffemodel ends at {LIMIT:,}: "
            "write it in HDF5 (`snapshot_format: HDF5`)"
        )
    for part in parts:
        left = memoryview(part)
        while left:  # a file without a buffer may take less than all
            left = left[file.write(left) :]


def matched(
    model: Model,
    blobs: Iterable[tuple[str, int, Shape]],
    *,
    layers: Iterable[str] = (),
    shared: Collection[tuple[str, int]] = (),
) -> dict[tuple[str, int], Stored]:
    """What Caffe would copy into a net's blobs, each in the net's shape, by (layer, index); nothing is read yet.

    `blobs` are all of the net's in their order, a shared one at each of its layers; `layers` are the names of further
    layers, without blobs. `shared` are those that belong to another layer: the values of one are to be copied as well,
    in the order of the result, but a file in HDF5 may lack them. Layers match by name; those on one side only are
    ignored. Raises `EngineError` for another number of blobs or another shape.
    Caffe: net.cpp, CopyTrainedLayersFrom and CopyTrainedLayersFromHDF5; blob.cpp, ShapeEquals.
    """
    net: dict[str, list[Shape]] = {name: [] for name in layers}
    for name, _, shape in blobs:
        net.setdefault(name, []).append(tuple(shape))
    found: dict[tuple[str, int], Stored] = {}
    for layer in model.layers:
        if layer.name not in net:
            continue
        shapes = net[layer.name]
        held = (*layer.blobs, *[None] * (len(shapes) - len(layer.blobs)))
        lacking = {index for index, values in enumerate(held) if values is None}
        may_lack = {i for name, i in shared if model.hdf5 and name == layer.name}
        if len(held) > len(shapes) or lacking - may_lack:
            raise EngineError(
                f"{model.path}: layer {layer.name!r} has {_count(len(shapes))} in this net, but "
                f"{_count(len(held) - len(lacking))} in the weights: {_REMEDY}"
            )
        for index, (values, shape) in enumerate(zip(held, shapes, strict=True)):
            if values is None:
                continue
            if not _equal(shape, values.shape, index in layer.legacy):
                raise EngineError(
                    f"{model.path}: blob {index} of layer {layer.name!r} is {shape_text(shape)} in this net, but "
                    f"{shape_text(values.shape)} in the weights: {_REMEDY}"
                )
            found.pop((layer.name, index), None)  # the order is that of the last copies
            found[layer.name, index] = replace(values, shape=shape)
    return found


def _count(blobs: int) -> str:
    return "1 blob" if blobs == 1 else f"{blobs} blobs"


def _equal(shape: Shape, held: Shape, legacy: bool) -> bool:
    """Whether a blob of this shape takes values of the shape `held`."""
    return shape == held or (legacy and (1,) * (len(held) - len(shape)) + shape == held)


def _read_binary(file: BufferedReader, path: Path) -> tuple[StoredLayer, ...]:
    size = size_of(file)
    if size > LIMIT:
        raise DamagedError(
            f"has {size:,} bytes, but a .caffemodel ends at {LIMIT:,}; a larger model is a .caffemodel.h5"
        )
    table = Table(size)
    layers: list[StoredLayer] = []
    old: list[StoredLayer] = []
    oldest: list[StoredLayer] = []
    for field in wire.fields(file, 0, size, table):
        if field.kind != wire.DELIMITED:
            continue
        if field.number == _LAYER:
            layers.append(_layer(file, field, path, table, name=1, blobs=_BLOBS))
        elif field.number == _LAYERS:
            inner = [
                one for one in wire.fields(file, field.begin, field.end, table) if one.number == 1
            ]
            if inner and inner[-1].kind == wire.DELIMITED:
                oldest.append(_layer(file, inner[-1], path, table, name=1, blobs=50))
            else:
                old.append(_layer(file, field, path, table, name=4, blobs=6))
    if oldest:  # beside it, Caffe drops what is in a later format
        return tuple(oldest)
    if old and layers:
        raise DamagedError("has layers in two formats (`layer` and `layers`), which Caffe refuses")
    return tuple(old or layers)


def _layer(
    file: BufferedReader, place: wire.Field, path: Path, table: Table, *, name: int, blobs: int
) -> StoredLayer:
    """The layer of a message in which these are the numbers of its fields."""
    own = list(wire.fields(file, place.begin, place.end, table))
    names = [one for one in own if one.number == name]
    called = wire.text(file, names[-1]) if names else ""
    held: list[Stored] = []
    legacy = set[int]()
    for field in own:
        if field.number == blobs and field.kind == wire.DELIMITED:
            what = f"blob {len(held)} of layer {called!r:.100}"
            one, is_old = wire.blob(file, field, path, what, table)
            if is_old:
                legacy.add(len(held))
            held.append(one)
    return StoredLayer(called, tuple(held), frozenset(legacy))


def _layer_parts(parameter: Any, blobs: Sequence[Values]) -> list[Any]:
    """The LayerParameter in pieces: its own fields, and of each blob its beginning, its values and its shape."""
    plain = type(parameter)()
    plain.CopyFrom(parameter)
    plain.ClearField("blobs")
    parts: list[Any] = [plain.SerializeToString()]
    for blob in blobs:
        values = np.ascontiguousarray(blob, FLOAT32).reshape(-1).view(np.uint8).data
        shape = caffe_pb2.BlobShape(dim=blob.shape).SerializeToString()
        before = _head(_DATA, len(values))
        after = _head(_SHAPE, len(shape)) + shape
        parts += [_head(_BLOBS, len(before) + len(values) + len(after)) + before, values, after]
    return parts


def _head(number: int, length: int) -> bytes:
    """What is before a field of this many bytes."""
    return _varint(number << 3 | wire.DELIMITED) + _varint(length)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
