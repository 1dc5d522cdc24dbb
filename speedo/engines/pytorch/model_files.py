"""Reads and writes Caffe's `.caffemodel`, and reads `.caffemodel.h5`, without Caffe.

Of the binary form protobuf reads one layer at a time, by a schema in which the values are bytes: they are copied whole
instead of one by one (`speedo.engines.solverstate` says why that is the same). Field numbers: Caffe,
src/caffe/proto/caffe.proto.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from speedo.engines.caffe_schema import caffe_pb2
from speedo.errors import EngineError
from speedo.system.files import open_to_read

Values = npt.NDArray[np.float32]
Shape = tuple[int, ...]

_HDF5: Final = b"\x89HDF"  # such a file begins with it
LIMIT: Final = 2**31 - 1  # bytes of a protobuf message
_FLOATS: Final = np.dtype("<f4")
_DOUBLES: Final = np.dtype("<f8")
_NOT_ONE: Final = "is not a .caffemodel, or a truncated one"
_VARINT, _LENGTH_DELIMITED = 0, 2  # protobuf's wire types
_FIXED_BYTES: Final = {1: 8, 5: 4}
_LAYERS, _LAYER, _BLOBS, _DATA, _SHAPE = 2, 100, 7, 5, 7  # numbers of fields
_MOST_BLOBS: Final = 1000  # of a layer in HDF5; an LSTM has three
_REMEDY: Final = "give the weights of this net, or rename the layer to train it from its fillers"


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer of a file: its name, and the arrays of its blobs in the shapes that the file gives them.

    `legacy` are the indices of blobs with the four numbers of old files for a shape: axes of 1 in front do not count.
    None stands for a blob that a layer in HDF5 lacks, because it shares it with another.
    """

    name: str
    blobs: tuple[Values | None, ...]
    legacy: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Model:
    """The layers of a trained net, in the file's order; one without parameters has no blobs."""

    layers: tuple[StoredLayer, ...]
    hdf5: bool = False


def read_model(path: Path) -> Model:
    """The model in a `.caffemodel` of any age or a `.caffemodel.h5`; which of them it is, its content says.

    Old formats are read as Caffe upgrades them (Caffe: util/upgrade_proto.cpp). Values of double precision are rounded.
    Raises `EngineError` for a file that cannot be read, is damaged, or is beyond protobuf's limit.
    """
    try:
        with open_to_read(path) as file:
            if file.peek(len(_HDF5)).startswith(_HDF5):
                return Model(tuple(_read_hdf5(file)), hdf5=True)
            return Model(_read_binary(file, os.fstat(file.fileno()).st_size))
    except OSError as error:
        raise EngineError(
            f"{path} cannot be read ({error.strerror or error}): correct the path or its permissions"
        ) from error
    except _DamagedError as error:
        raise EngineError(f"{path} {error.args[0]}: give another file") from None


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
) -> dict[tuple[str, int], Values]:
    """The values that Caffe would copy into a net's blobs, each in the net's shape, by (layer, index).

    `blobs` are all of the net's in their order, a shared one at each of its layers; `layers` are the names of further
    layers, without blobs. `shared` are those that belong to another layer: the values of one are to be copied as well,
    in the order of the result, but a file in HDF5 may lack them. Layers match by name; those on one side only are
    ignored. Raises `EngineError` for another number of blobs or another shape.
    Caffe: net.cpp, CopyTrainedLayersFrom and CopyTrainedLayersFromHDF5; blob.cpp, ShapeEquals.
    """
    net: dict[str, list[Shape]] = {name: [] for name in layers}
    for name, _, shape in blobs:
        net.setdefault(name, []).append(tuple(shape))
    found: dict[tuple[str, int], Values] = {}
    for layer in model.layers:
        if layer.name not in net:
            continue
        shapes = net[layer.name]
        held = (*layer.blobs, *[None] * (len(shapes) - len(layer.blobs)))
        lacking = {index for index, values in enumerate(held) if values is None}
        may_lack = {i for name, i in shared if model.hdf5 and name == layer.name}
        if len(held) > len(shapes) or lacking - may_lack:
            raise EngineError(
                f"layer {layer.name!r} has {_count(len(shapes))} in this net, but {_count(len(held) - len(lacking))} "
                f"in the weights: {_REMEDY}"
            )
        for index, (values, shape) in enumerate(zip(held, shapes, strict=True)):
            if values is None:
                continue
            if not _equal(shape, values.shape, index in layer.legacy):
                raise EngineError(
                    f"blob {index} of layer {layer.name!r} is {_text(shape)} in this net, but {_text(values.shape)} "
                    f"in the weights: {_REMEDY}"
                )
            found.pop((layer.name, index), None)  # the order is that of the last copies
            found[layer.name, index] = values.reshape(shape)
    return found


def _count(blobs: int) -> str:
    return "1 blob" if blobs == 1 else f"{blobs} blobs"


def _text(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "a single value"


def _equal(shape: Shape, held: Shape, legacy: bool) -> bool:
    """Whether a blob of this shape takes values of the shape `held`."""
    return shape == held or (legacy and (1,) * (len(held) - len(shape)) + shape == held)


class _DamagedError(Exception):
    """What is wrong with a file; follows its name."""


def _layer_classes() -> tuple[Any, Any]:
    """LayerParameter and V1LayerParameter with nothing but names and blobs."""
    field = FieldDescriptorProto
    file = FileDescriptorProto(name="speedo/model.proto", package="speedo", syntax="proto2")

    def declare(name: str, *fields: tuple[str, int, Any, Any, str | None]) -> None:
        message = file.message_type.add(name=name)
        for called, number, kind, label, of in fields:
            message.field.add(name=called, number=number, type=kind, label=label, type_name=of)

    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    blobs = (field.TYPE_MESSAGE, many, ".speedo.BlobProto")
    name = (field.TYPE_BYTES, one, None)  # Caffe takes names that are not UTF-8
    declare("BlobShape", ("dim", 1, field.TYPE_INT64, many, None))
    declare(
        "BlobProto",
        ("num", 1, field.TYPE_INT32, one, None),
        ("channels", 2, field.TYPE_INT32, one, None),
        ("height", 3, field.TYPE_INT32, one, None),
        ("width", 4, field.TYPE_INT32, one, None),
        ("data", _DATA, field.TYPE_BYTES, one, None),
        ("shape", _SHAPE, field.TYPE_MESSAGE, one, ".speedo.BlobShape"),
        ("double_data", 8, field.TYPE_BYTES, one, None),
    )
    declare("Layer", ("name", 1, *name), ("blobs", _BLOBS, *blobs))
    declare("V0Layer", ("name", 1, *name), ("blobs", 50, *blobs))
    declare(
        "V1Layer",
        ("layer", 1, field.TYPE_MESSAGE, one, ".speedo.V0Layer"),
        ("name", 4, *name),
        ("blobs", 6, *blobs),
    )
    pool = DescriptorPool()
    pool.Add(file)
    layer, old = (pool.FindMessageTypeByName(f"speedo.{name}") for name in ("Layer", "V1Layer"))
    return GetMessageClass(layer), GetMessageClass(old)


_Layer, _V1Layer = _layer_classes()


def _read_binary(file: IO[bytes], size: int) -> tuple[StoredLayer, ...]:
    if size > LIMIT:
        raise _DamagedError(
            f"has {size:,} bytes, but a .caffemodel ends at {LIMIT:,}; a larger model is a .caffemodel.h5"
        )
    layers: list[StoredLayer] = []
    old: list[StoredLayer] = []
    oldest: list[StoredLayer] = []
    rest = bytearray()
    try:
        for number, content in _fields(file, size, rest):
            if number == _LAYER:
                layers.append(_stored(_Layer, caffe_pb2.LayerParameter, content)[1])
            else:
                is_oldest, layer = _stored(_V1Layer, caffe_pb2.V1LayerParameter, content)
                (oldest if is_oldest else old).append(layer)
        caffe_pb2.NetParameter.FromString(bytes(rest))
    except DecodeError:
        raise _DamagedError(_NOT_ONE) from None
    if oldest:  # beside it, Caffe drops what is in a later format
        return tuple(oldest)
    if old and layers:
        raise _DamagedError("has layers in two formats (`layer` and `layers`), which Caffe refuses")
    return tuple(old or layers)


def _fields(file: IO[bytes], size: int, rest: bytearray) -> Iterator[tuple[int, bytes]]:
    """Number and content of each layer of a NetParameter; all its other fields are added to `rest`."""
    while file.tell() < size:
        tag = _read_varint(file)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            rest += _varint(tag) + _varint(_read_varint(file))
            continue
        if kind != _LENGTH_DELIMITED and kind not in _FIXED_BYTES:
            raise _DamagedError(_NOT_ONE)
        delimited = kind == _LENGTH_DELIMITED
        length = _read_varint(file) if delimited else _FIXED_BYTES[kind]
        if length > size - file.tell():
            raise _DamagedError(_NOT_ONE)
        content = file.read(length)
        if delimited and number in (_LAYERS, _LAYER):
            yield number, content
        else:
            rest += _varint(tag) + (_varint(length) if delimited else b"") + content


def _stored(kind: Any, whole: Any, content: bytes) -> tuple[bool, StoredLayer]:
    """Whether it is in the oldest form, and the layer; what is not packed in one piece, `whole` packs first."""
    is_oldest, layer = _inner(kind.FromString(content))
    blobs = [_Stored.of(blob) for blob in layer.blobs]
    if any(blob.problem for blob in blobs):
        _, layer = _inner(kind.FromString(whole.FromString(content).SerializeToString()))
        blobs = [_Stored.of(blob) for blob in layer.blobs]
    name = layer.name.decode("utf-8", "replace")
    for index, blob in enumerate(blobs):
        if blob.problem:
            raise _DamagedError(f"is damaged: blob {index} of layer {name!r} {blob.problem}")
    legacy = frozenset(index for index, blob in enumerate(blobs) if blob.legacy)
    return is_oldest, StoredLayer(name, tuple(blob.array() for blob in blobs), legacy)


def _inner(layer: Any) -> tuple[bool, Any]:
    """Whether it is in the oldest form, within a V1LayerParameter, and the message that holds name and blobs."""
    is_oldest = isinstance(layer, _V1Layer) and layer.HasField("layer")
    return is_oldest, layer.layer if is_oldest else layer


@dataclass(frozen=True, slots=True)
class _Stored:
    """A BlobProto, whose values protobuf copies each time that they are asked for."""

    shape: Shape
    legacy: bool
    content: bytes
    kind: np.dtype[Any]

    @classmethod
    def of(cls, blob: Any) -> _Stored:
        """Caffe: blob.cpp, FromProto."""
        legacy = any(blob.HasField(axis) for axis in ("num", "channels", "height", "width"))
        extents = (blob.num, blob.channels, blob.height, blob.width) if legacy else blob.shape.dim
        shape = tuple(map(int, extents))
        if doubles := blob.double_data:
            return cls(shape, legacy, doubles, _DOUBLES)
        return cls(shape, legacy, blob.data, _FLOATS)

    @property
    def problem(self) -> str:
        """What is wrong with it, or nothing."""
        held, needed = len(self.content), self.kind.itemsize * math.prod(self.shape)
        if min(self.shape, default=0) >= 0 and held == needed:
            return ""
        return f"holds {held // self.kind.itemsize:,} values, but its shape is {_text(self.shape)}"

    def array(self) -> Values:
        values = np.frombuffer(self.content, self.kind).astype(np.float32, copy=False)
        return values.reshape(self.shape)


def _read_hdf5(file: IO[bytes]) -> Iterator[StoredLayer]:
    import h5py  # beside Caffe's own library of HDF5, and only where it is asked for

    def layers(group: Any, name: str) -> Iterator[StoredLayer]:
        blobs = {
            int(key): one for key, one in group.items() if key.isdecimal() and hasattr(one, "shape")
        }
        if blobs and max(blobs) >= _MOST_BLOBS:
            raise _DamagedError(f"has a blob {max(blobs)} in layer {name!r}")
        if name:
            held = (blobs.get(index) for index in range(max(blobs, default=-1) + 1))
            yield StoredLayer(name, tuple(None if one is None else values(one) for one in held))
        for key, one in group.items():
            if hasattr(one, "items"):  # a slash in a layer's name has made groups within groups
                yield from layers(one, f"{name}/{key}" if name else key)

    def values(dataset: Any) -> Values:
        if dataset.dtype.kind not in "fiu":
            raise _DamagedError(f"has values of the type {dataset.dtype} in {dataset.name}")
        return np.ascontiguousarray(dataset[()], np.float32)

    try:
        with h5py.File(file, "r") as found:
            yield from layers(found["data"], "")
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise _DamagedError(f"is not a .caffemodel.h5, or a truncated one ({error})") from None


def _layer_parts(parameter: Any, blobs: Sequence[Values]) -> list[Any]:
    """The LayerParameter in pieces: its own fields, and of each blob its beginning, its values and its shape."""
    plain = type(parameter)()
    plain.CopyFrom(parameter)
    plain.ClearField("blobs")
    parts: list[Any] = [plain.SerializeToString()]
    for blob in blobs:
        values = np.ascontiguousarray(blob, _FLOATS).reshape(-1).view(np.uint8).data
        shape = caffe_pb2.BlobShape(dim=blob.shape).SerializeToString()
        before = _head(_DATA, len(values))
        after = _head(_SHAPE, len(shape)) + shape
        parts += [_head(_BLOBS, len(before) + len(values) + len(after)) + before, values, after]
    return parts


def _head(number: int, length: int) -> bytes:
    """What is before a field of this many bytes."""
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(length)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(file: IO[bytes]) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise _DamagedError(_NOT_ONE)
