"""Archives in zip's form, as NumPy and PyTorch write them: where the content of each file is, none of it unpacked."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from speedo.engines.weight_files.stored import (
    DamagedError,
    Piece,
    Stored,
    Table,
    exactly,
    reading,
    size_of,
    stored,
)

_MOST_TABLE_BYTES: Final = 16 << 20  # of the archive's own table, some 100 for each file in it
_END: Final = b"PK\5\6"  # before the last 18 bytes and a comment
_FAR_END: Final = b"PK\6\6"
_LOCATOR: Final = b"PK\6\7"
_CHUNK: Final = 1 << 20


class Entry(NamedTuple):
    """A file in an archive; its content begins at byte `begin`."""

    name: str
    begin: int
    size: int
    crc: int


def entries(file: BufferedReader) -> dict[str, Entry]:
    """The files in an archive by their names. Raises `DamagedError`, for one that is compressed too."""
    _check_table(file)
    size, found = size_of(file), dict[str, Entry]()
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise DamagedError(f"is no whole archive ({error!s:.100})") from None
    for info in infos:
        if info.flag_bits & 1 or info.compress_type != zipfile.ZIP_STORED:
            raise DamagedError(
                f"has {info.filename!r:.100} compressed or encrypted",
                "save it again without (numpy.savez, torch.save)",
            )
        head = exactly(file, info.header_offset, 30, f"{info.filename!r:.100}")
        name, extra = struct.unpack("<HH", head[26:30])
        begin = info.header_offset + len(head) + name + extra
        if begin + info.file_size > size or info.filename in found:
            raise DamagedError(f"is damaged: {info.filename!r:.100} is there twice, or not whole")
        found[info.filename] = Entry(info.filename, begin, info.file_size, info.CRC)
    return found


def read_npz(path: Path) -> dict[str, Stored]:
    """The arrays of an `.npz`, not read yet. Raises `EngineError`, for one that is not of floating point too."""
    arrays: dict[str, Stored] = {}
    others = []
    with reading(path, "an .npz") as file:
        table = Table(size_of(file))
        for name, entry in entries(file).items():
            key = name.removesuffix(".npy")
            _check_content(file, entry)
            one, kind = _array(file, entry, path, key)
            if kind.kind != "f":
                others.append(f"{key} ({kind})")
                continue
            arrays[key] = table.array(one)
        if others:
            raise DamagedError(f"has arrays without floating point: {', '.join(others)[:200]}")
    return arrays


def is_npz(file: BufferedReader) -> bool:
    """Whether an archive has nothing but arrays of NumPy's. Raises `DamagedError`."""
    return all(name.endswith(".npy") for name in entries(file))


def _array(
    file: BufferedReader, entry: Entry, path: Path, key: str
) -> tuple[Stored, np.dtype[Any]]:
    """NumPy's own form of an array: a header in text, then the values. It has no length of its own."""
    file.seek(entry.begin)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise DamagedError(f"has {key!r:.100} in a form of NumPy that weights do not need")
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, by_columns, kind = read(file)
    begin = file.tell()
    count = math.prod(shape)
    if kind.kind == "f" and begin + count * kind.itemsize > entry.begin + entry.size:
        raise DamagedError(f"declares more values for {key!r:.100} than it holds")
    pieces = [Piece(begin, count, kind)] if count else []
    strides = tuple(math.prod(shape[:axis]) for axis in range(len(shape)))
    return stored(
        path, repr(key)[:100], shape, pieces, strides if by_columns and count else None
    ), kind


def _check_content(file: BufferedReader, entry: Entry) -> None:
    """Raises `DamagedError` for bytes that are not those that were written."""
    file.seek(entry.begin)
    left, crc = entry.size, 0
    while left:
        content = file.read(min(left, _CHUNK))
        if not content:
            break
        left, crc = left - len(content), zlib.crc32(content, crc)
    if left or crc != entry.crc:
        raise DamagedError(f"is damaged: {entry.name!r:.100} is not what was written")


def _check_table(file: BufferedReader) -> None:
    """Raises `DamagedError` for an archive whose table would fill the memory, as `zipfile` makes objects of it."""
    size = size_of(file)
    file.seek(max(0, size - (1 << 16) - 22))
    tail = file.read()
    at = len(tail) - 22 if tail[-22:-18] == _END and tail.endswith(b"\0\0") else tail.rfind(_END)
    if at < 0 or len(tail) < at + 22:
        raise DamagedError("is no whole archive (it has no end)")
    (length,) = struct.unpack_from("<I", tail, at + 12)
    if at >= 20 and tail[at - 20 : at - 16] == _LOCATOR:  # then `zipfile` looks at these places
        (named,) = struct.unpack_from("<Q", tail, at - 12)
        far = [_far_length(file, size, place) for place in (size - len(tail) + at - 76, named)]
        length = max(far) if max(far) >= 0 else length
    if length > _MOST_TABLE_BYTES:
        raise DamagedError(f"has a table of {length:,} bytes, which no model has")


def _far_length(file: BufferedReader, size: int, place: int) -> int:
    """The length of the table that a large archive's second end names; -1 where there is none."""
    if not 0 <= place <= size - 56:
        return -1
    file.seek(place)
    end = file.read(56)
    return int(struct.unpack_from("<Q", end, 40)[0]) if end.startswith(_FAR_END) else -1
