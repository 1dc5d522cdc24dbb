"""The initializers of an ONNX file, read without the package `onnx`. Field numbers: ONNX, onnx/onnx.proto."""

from __future__ import annotations

import math
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from caffenets.weight_files import wire
from caffenets.weight_files.stored import (
    FLOAT32,
    FLOAT64,
    MOST_AXES,
    DamagedError,
    Stored,
    Table,
    check_shape,
    exactly,
    reading,
    size_of,
    stored,
)

_GRAPH, _METADATA, _INITIALIZER = 7, 14, 5
# Of floating point
_KINDS: Final[Mapping[int, np.dtype[Any]]] = {1: FLOAT32, 10: np.dtype("<f2"), 11: FLOAT64}
# Fields of numbers of one type
_LISTS: Final[Mapping[int, np.dtype[Any]]] = {4: FLOAT32, 10: FLOAT64}
# Of whole numbers, which are read at once: shapes and axes
_WHOLE: Final[Mapping[int, np.dtype[Any]]] = {
    2: np.dtype("u1"), 3: np.dtype("i1"), 6: np.dtype("<i4"), 7: np.dtype("<i8"), 9: np.dtype("?"),
}  # fmt: skip
_INT32, _INT64, _RAW, _EXTERNAL, _LOCATION = 5, 7, 9, 13, 14
_FLOAT16: Final = 10
_MOST_NOTE_BYTES: Final = 16 << 20
MOST_WHOLE: Final = 1 << 16  # numbers in an array of whole ones; a shape has some 10


class Tensor(NamedTuple):
    """A TensorProto: values of floating point that are not read yet, or whole numbers; neither for another kind."""

    name: str
    floats: Stored | None
    whole: npt.NDArray[np.int64] | None = None


def read_initializers(path: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    """The initializers of floating point, not read yet, and the metadata. Raises `EngineError`."""
    arrays: dict[str, Stored] = {}
    notes: dict[str, str] = {}
    graphs = 0
    with reading(path, "an ONNX file") as file:
        size = size_of(file)
        table = Table(size)
        for field in wire.fields(file, 0, size, table):
            if field.kind != wire.DELIMITED:
                continue
            if field.number == _METADATA:
                own = {one.number: one for one in wire.fields(file, field.begin, field.end, table)}
                if 1 in own and 2 in own:
                    notes[wire.text(file, own[1])] = wire.text(file, own[2], _MOST_NOTE_BYTES)
            elif field.number == _GRAPH:
                graphs += 1
                for inner in wire.fields(file, field.begin, field.end, table):
                    if inner.number == _INITIALIZER and inner.kind == wire.DELIMITED:
                        one = read_tensor(file, inner, path, table)
                        if one.floats is not None:
                            arrays[one.name] = one.floats
        if not graphs:
            raise DamagedError("is no ONNX file, or a truncated one: it has no graph")
    return arrays, notes


def read_tensor(file: BufferedReader, place: wire.Field, path: Path, table: Table) -> Tensor:
    """The TensorProto in this place. Raises `DamagedError`."""
    shape: list[int] = []
    name, kind, lists, raw = "", 0, list[tuple[np.dtype[Any], wire.Field]](), list[wire.Field]()
    whole: list[wire.Field] = []
    elsewhere = False
    for field in wire.fields(file, place.begin, place.end, table):
        if field.number == 1:
            shape += wire.integers(file, field, "an initializer")
            if len(shape) > MOST_AXES:
                raise DamagedError(f"is damaged: an initializer has more than {MOST_AXES} axes")
        elif field.number == 2 and field.kind == wire.VARINT:
            kind = field.value
        elif field.number == 8:
            name = wire.text(file, field)
        elif field.number == _RAW:
            raw.append(field)
        elif field.number == _INT32 and kind == _FLOAT16:
            raise DamagedError("has float16 values as integers", "write them as raw_data")
        elif field.number in (_INT32, _INT64):
            whole.append(field)
        elif field.number in _LISTS:
            lists.append((_LISTS[field.number], field))
        elif field.number == _EXTERNAL or (field.number == _LOCATION and field.value):
            elsewhere = True
    what = f"{name!r:.100}"
    if elsewhere:
        raise DamagedError(
            f"has the values of {what} in another file",
            "write it in one file (onnx.save(onnx.load(OLD), NEW))",
        )
    if kind in _WHOLE:
        return Tensor(name, None, _whole(file, shape, raw, whole, _WHOLE[kind], what))
    if kind not in _KINDS:
        return Tensor(name, None)
    pieces = [wire.piece(field, _KINDS[kind], what) for field in raw]
    pieces += [wire.piece(field, own, what) for own, field in lists if own == _KINDS[kind]]
    held = [one for one in pieces if one.length]
    return Tensor(name, table.array(stored(path, what, shape, held)))


def _whole(
    file: BufferedReader,
    shape: list[int],
    raw: list[wire.Field],
    listed: list[wire.Field],
    kind: np.dtype[Any],
    what: str,
) -> npt.NDArray[np.int64] | None:
    """Whole numbers in their shape; None for more than a shape needs."""
    check_shape(what, tuple(shape))
    if math.prod(shape) > MOST_WHOLE or any(one.end - one.begin > 10 * MOST_WHOLE for one in raw):
        return None
    found = [value for one in listed for value in wire.integers(file, one, what, MOST_WHOLE)]
    content = b"".join(exactly(file, one.begin, one.end - one.begin, what) for one in raw)
    size = len(content) / kind.itemsize + len(found)
    if size != math.prod(shape):
        raise DamagedError(f"is damaged: {what} does not hold what its shape {tuple(shape)} needs")
    values = np.array(found, np.int64) if found else np.frombuffer(content, kind).astype(np.int64)
    return values.reshape(shape)
