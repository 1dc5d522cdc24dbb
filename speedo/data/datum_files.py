"""Reads files of Caffe's `Datum` messages: one message a file, or many in one, each after its length.

What the original SpeeDO's files looked like is not published. These are the two forms that protobuf itself has:
`SerializeToString` into a file, and `writeDelimitedTo`, whose length is a varint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from google.protobuf.message import DecodeError

from caffenets.caffe_schema import caffe_pb2
from speedo.data.base import Progress
from speedo.data.database import Record, record_key
from speedo.data.files import open_file
from speedo.errors import DataError

MOST_BYTES: Final = 512 << 20  # of one message
_LONGEST_VARINT: Final = 5  # bytes, for lengths below 2^35
_SEVEN_BITS: Final = 7
_REMEDY: Final = "leave the file out, or create it again"


def datum_files(path: Path) -> list[Path]:
    """The file itself, or all files of a folder and the folders in it; 2.datum comes before 10.datum."""
    if not path.is_dir():
        return [path]
    found = [
        Path(folder) / name
        for folder, _, names in os.walk(path)
        for name in names
        if not name.startswith(".")
    ]
    return sorted(found, key=lambda file: _natural(file.relative_to(path)))


def read_datums(path: Path, progress: Progress) -> Iterator[Record]:
    """The messages of all files in order, byte for byte; raises `DataError` naming file and place of what is none."""
    files, index = datum_files(path), 0
    for done, file in enumerate(files, 1):
        with open_file(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            delimited = _is_delimited(stream, size)
            stream.seek(0)
            messages = _delimited(stream, file, size) if delimited else _whole(stream, file, size)
            for message in messages:
                yield record_key(index, "" if delimited else file.name), message
                index += 1
        progress(done, len(files), "reading files")


def _whole(stream: IO[bytes], file: Path, size: int) -> Iterator[bytes]:
    message = stream.read(MOST_BYTES + 1)
    if size > MOST_BYTES or not _is_datum(message):
        raise DataError(
            f"{file} holds no Datum of Caffe, nor several after their lengths: {_REMEDY}"
        )
    yield message


def _delimited(stream: IO[bytes], file: Path, size: int) -> Iterator[bytes]:
    while (start := stream.tell()) < size:
        length = _length(stream)
        message = b"" if length is None else stream.read(length)
        if length is None or len(message) < length or not _is_datum(message):
            raise DataError(f"{file} holds no whole Datum of Caffe at byte {start:,}: {_REMEDY}")
        yield message


def _is_delimited(stream: IO[bytes], size: int) -> bool:
    """Whether a length comes first, and after it a Datum of that length."""
    length = _length(stream)
    if not length or stream.tell() + length > size:
        return False
    return _is_datum(stream.read(length))


def _length(stream: IO[bytes]) -> int | None:
    """A varint; None if there is none, or one of more than `MOST_BYTES`."""
    value = 0
    for place in range(_LONGEST_VARINT):
        byte = stream.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << (_SEVEN_BITS * place)
        if byte[0] < 0x80:
            return value if value <= MOST_BYTES else None
    return None


def _is_datum(message: bytes) -> bool:
    """Whether these bytes are a Datum with something in it; any other message could pass for an empty one."""
    datum: Any = caffe_pb2.Datum()
    try:
        datum.ParseFromString(message)
    except DecodeError:
        return False
    return bool(datum.data or datum.float_data)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Numbers in a name by their value."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
