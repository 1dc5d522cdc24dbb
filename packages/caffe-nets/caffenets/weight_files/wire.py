"""Protobuf's wire format, walked without a schema: what fields a message has, and where. Their content is not read.

Protobuf itself would make an object of every field first, of which two bytes of a file can declare one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from caffenets.weight_files.stored import (
    FLOAT32,
    FLOAT64,
    MOST_AXES,
    MOST_NAME_BYTES,
    DamagedError,
    Piece,
    Stored,
    Table,
    exactly,
    stored,
)

VARINT, DELIMITED = 0, 2
_FIXED: Final[Mapping[int, np.dtype[Any]]] = {1: FLOAT64, 5: FLOAT32}
_CHUNK: Final = 1 << 16
_CUT: Final = "a field ends behind its message"


class Field(NamedTuple):
    """A field of a message: the value of a number, else where its content is. A run of fixed numbers is one field."""

    number: int
    kind: int
    begin: int
    end: int
    value: int = 0


def fields(file: BufferedReader, begin: int, end: int, table: Table) -> Iterator[Field]:
    """The fields of the message in these bytes. Raises `ValueError` where it is none, and `DamagedError`."""
    while begin < end:
        table.entry()
        file.seek(begin)
        tag = _varint(file)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise ValueError("a field has the number 0")
        if kind == VARINT:
            value = _varint(file)
            at = file.tell()
            yield Field(number, kind, at, at, value)
        elif kind == DELIMITED:
            length = _varint(file)
            start = file.tell()
            at = start + length
            if at > end:
                raise ValueError(_CUT)
            yield Field(number, kind, start, at)
        elif kind in _FIXED:
            step = file.tell() + _FIXED[kind].itemsize - begin
            at = begin + step * _run(file, begin, end, tag, step)
            yield Field(number, kind, begin, at)
        else:
            raise ValueError("a field has a kind that protobuf does not have")
        begin = at
    if begin > end:
        raise ValueError(_CUT)


def blob(
    file: BufferedReader, place: Field, path: Path, what: str, table: Table
) -> tuple[Stored, bool]:
    """Caffe's BlobProto, and whether it has the four numbers of old files for a shape (blob.cpp, FromProto)."""
    old = [0, 0, 0, 0]
    shape: list[int] = []
    floats: list[Piece] = []
    doubles: list[Piece] = []
    legacy = False
    for field in fields(file, place.begin, place.end, table):
        if field.kind == VARINT and 1 <= field.number <= len(old):
            legacy, old[field.number - 1] = True, signed(field.value)
        elif field.number == 5:
            floats.append(piece(field, FLOAT32, what))
        elif field.number == 8:
            doubles.append(piece(field, FLOAT64, what))
        elif field.number == 7 and field.kind == DELIMITED:
            for inner in fields(file, field.begin, field.end, table):
                if inner.number == 1:
                    shape += integers(file, inner, what)
    pieces = [one for one in doubles or floats if one.length]
    return table.array(stored(path, what, old if legacy else shape, pieces)), legacy


def piece(field: Field, kind: np.dtype[Any], what: str) -> Piece:
    """The numbers of a field, packed or one by one. Raises `DamagedError`."""
    length = field.end - field.begin
    if field.kind == DELIMITED and not length % kind.itemsize:
        return Piece(field.begin, length // kind.itemsize, kind)
    if _FIXED.get(field.kind) == kind and not length % (kind.itemsize + 1):  # a tag of one byte
        each = np.dtype(
            {
                "names": ["value"],
                "formats": [kind],
                "offsets": [1],
                "itemsize": kind.itemsize + 1,
            }
        )
        return Piece(field.begin, length // each.itemsize, each)
    raise DamagedError(f"is damaged: {what} holds no whole numbers")


def integers(file: BufferedReader, field: Field, what: str, most: int = MOST_AXES) -> list[int]:
    """The extents of a shape, or other whole numbers. Raises `DamagedError` for more than there can be."""
    if field.kind == VARINT:
        return [signed(field.value)]
    if field.kind != DELIMITED or field.end - field.begin > 10 * most:
        numbers = "axes" if most == MOST_AXES else "numbers"
        raise DamagedError(f"is damaged: {what} has more than {most} {numbers}")
    file.seek(field.begin)
    found = []
    while file.tell() < field.end:
        found.append(signed(_varint(file)))
    return found


def text(file: BufferedReader, field: Field, most: int = MOST_NAME_BYTES) -> str:
    """A name. Raises `DamagedError` for a longer one."""
    if field.kind != DELIMITED or field.end - field.begin > most:
        raise DamagedError(f"has a name of more than {most:,} bytes")
    content = exactly(file, field.begin, field.end - field.begin, "a name")
    return content.decode("utf-8", "replace")


def signed(value: int) -> int:
    """An int32 or int64 of the wire."""
    return value - 2**64 if value >= 2**63 else value


def _varint(file: BufferedReader) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value & (2**64 - 1)
    raise ValueError(_CUT)


def _run(file: BufferedReader, begin: int, end: int, tag: int, step: int) -> int:
    """How many fields of `step` bytes with this tag follow each other."""
    if begin + step > end:
        raise ValueError(_CUT)
    if tag >= 0x80:  # of several bytes: no list of numbers that we read has it
        return 1
    count = 0
    while True:
        at = begin + count * step
        file.seek(at)
        content = file.read(min(_CHUNK * step, (end - at) // step * step))
        tags = np.frombuffer(content, np.uint8)[::step]
        others = np.flatnonzero(tags != tag)
        if others.size:
            return count + int(others[0])
        count += len(content) // step
        if len(content) < _CHUNK * step:
            return count
