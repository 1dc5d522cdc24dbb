"""Archives in zip's form, as NumPy and PyTorch write them: where the content of each file is, none of it unpacked."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np

from caffenets.weight_files.stored import (
    DamagedError,
    Piece,
    Stored,
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
    return {info.filename: _entry(file, info) for info in _infos(file)}


def read_npz(path: Path) -> dict[str, Stored]:
    """The arrays of an `.npz`, not read yet. Raises `EngineError`, for one that is not of floating point too."""
    arrays: dict[str, Stored] = {}
    others = []
    with reading(path, "an .npz") as file:
        infos = _infos(file)
        with zipfile.ZipFile(file) as archive:
            for info in infos:
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise DamagedError(
                        f"has {info.filename!r:.100} in a form that NumPy does not write"
                    )
                key = info.filename.removesuffix(".npy")
                with archive.open(info) as content:
                    one, kind = _array(content, info, path, key)
                if kind.kind != "f":
                    others.append(f"{key} ({kind})")
                if info.compress_type == zipfile.ZIP_STORED:
                    one = _placed(file, info, one)
                arrays[key] = one
        if others:
            raise DamagedError(f"has arrays without floating point: {', '.join(others)[:200]}")
    return arrays


def is_npz(file: BufferedReader) -> bool:
    """Whether an archive has nothing but arrays of NumPy's. Raises `DamagedError`."""
    return all(info.filename.endswith(".npy") for info in _infos(file))


def _infos(file: BufferedReader) -> list[zipfile.ZipInfo]:
    """The table of an archive. Raises `DamagedError`."""
    _check_table(file)
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise DamagedError(f"is no whole archive ({error!s:.100})") from None


def _entry(file: BufferedReader, info: zipfile.ZipInfo) -> Entry:
    what = f"{info.filename!r:.100}"
    if info.flag_bits & 1 or info.compress_type != zipfile.ZIP_STORED:
        raise DamagedError(f"has {what} compressed or encrypted", "save it again without")
    head = exactly(file, info.header_offset, 30, what)
    name, extra = struct.unpack("<HH", head[26:30])
    begin = info.header_offset + len(head) + name + extra
    if begin + info.file_size > size_of(file):
        raise DamagedError(f"is truncated: it ends before the end of {what}")
    return Entry(info.filename, begin, info.file_size, info.CRC)


def _array(
    content: IO[bytes], info: zipfile.ZipInfo, path: Path, key: str
) -> tuple[Stored, np.dtype[Any]]:
    """NumPy's own form of an array: a header in text, then the values. It has no length of its own."""
    version = np.lib.format.read_magic(content)
    if version not in ((1, 0), (2, 0)):
        raise DamagedError(f"has {key!r:.100} in a form of NumPy that weights do not need")
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, by_columns, kind = read(content)
    begin, count = content.tell(), math.prod(shape)
    if kind.kind == "f" and begin + count * kind.itemsize != info.file_size:
        raise DamagedError(f"declares other values for {key!r:.100} than it holds")
    pieces = (Piece(begin, count, kind),) if count else ()
    strides = tuple(math.prod(shape[:axis]) for axis in range(len(shape)))
    one = stored(path, repr(key)[:100], shape, pieces, strides if by_columns and count else None)
    return replace(one, member=info.filename), kind


def _placed(file: BufferedReader, info: zipfile.ZipInfo, one: Stored) -> Stored:
    """An array that is not compressed, as a part of the whole file."""
    entry = _entry(file, info)
    _check_content(file, entry)
    pieces = tuple(piece._replace(begin=entry.begin + piece.begin) for piece in one.pieces)
    return replace(one, member="", pieces=pieces)


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
