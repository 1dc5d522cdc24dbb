"""The initializers of an ONNX file, read without the package `onnx`. Field numbers: ONNX, onnx/onnx.proto."""

from __future__ import annotations

from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

import numpy as np

from caffenets.weight_files import wire
from caffenets.weight_files.stored import (
    FLOAT32,
    FLOAT64,
    MOST_AXES,
    DamagedError,
    Stored,
    Table,
    reading,
    size_of,
    stored,
)

_GRAPH, _METADATA, _INITIALIZER = 7, 14, 5
# Of floating point
_KINDS: Final[Mapping[int, np.dtype[Any]]] = {1: FLOAT32, 10: np.dtype("<f2"), 11: FLOAT64}
# Fields of numbers of one type
_LISTS: Final[Mapping[int, np.dtype[Any]]] = {4: FLOAT32, 10: FLOAT64}
_INT32, _RAW, _EXTERNAL, _LOCATION = 5, 9, 13, 14
_FLOAT16: Final = 10
_MOST_NOTE_BYTES: Final = 16 << 20


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
                        name, one = _tensor(file, inner, path, table)
                        if one is not None:
                            arrays[name] = one
        if not graphs:
            raise DamagedError("is no ONNX file, or a truncated one: it has no graph")
    return arrays, notes


def _tensor(
    file: BufferedReader, place: wire.Field, path: Path, table: Table
) -> tuple[str, Stored | None]:
    """Name and values of a TensorProto; no values for one that is not of floating point."""
    shape: list[int] = []
    name, kind, lists, raw = "", 0, list[tuple[np.dtype[Any], wire.Field]](), list[wire.Field]()
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
    if kind not in _KINDS:
        return name, None
    pieces = [wire.piece(field, _KINDS[kind], what) for field in raw]
    pieces += [wire.piece(field, own, what) for own, field in lists if own == _KINDS[kind]]
    held = [one for one in pieces if one.length]
    return name, table.array(stored(path, what, shape, held))
