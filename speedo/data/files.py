"""Files that users name, as `caffenets.files` opens them, with its errors as DataError; and compressed ones.

A few kilobytes may unpack to all of memory: no more is read than a file may hold.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Final, cast

from caffenets import files
from speedo.errors import DataError

# What the decompressors of the standard library raise for damaged input, beside OSError.
DAMAGE: Final = (EOFError, zlib.error, lzma.LZMAError)


def open_file(path: Path) -> BufferedReader:
    """Open a regular file; raises DataError for anything else, and never waits for one."""
    with _as_data_error(path):
        return files.open_to_read(path)


def read_file(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file of at most this many bytes; raises DataError."""
    with _as_data_error(path):
        return files.read_bytes(path, most_bytes)


@contextmanager
def _as_data_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise DataError(
            f"{path} cannot be read: {why}; correct its name or its rights, or name another file"
        ) from error


class Unpacked:
    """The bytes in a compressed file (gzip, bzip2, xz; plain ones too), up to a limit that it may not pass.

    Reading raises DataError at the limit; for damage what the decompressors raise: OSError, and `DAMAGE`.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        self._path, self._most, self._left = path, most_bytes, most_bytes
        self._file = open_file(path)
        self._stream = _decompressor(self._file)
        self.is_packed = self._stream is not self._file

    def read(self, size: int) -> bytes:
        """The next bytes, fewer than `size` only at the end."""
        data = self._stream.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise DataError(
                f"{self._path} unpacks to more than {self._most:,} bytes, more than it may hold: "
                "it is damaged or not what its name says, fetch it again"
            )
        return data

    def allow(self, more_bytes: int) -> None:
        """Let this many bytes more be read."""
        self._left += more_bytes
        self._most += more_bytes

    def __enter__(self) -> Unpacked:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._file.close()


def _decompressor(file: IO[bytes]) -> IO[bytes]:
    start = file.read(6)
    file.seek(0)
    if start.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if start.startswith(b"BZh"):
        return cast(IO[bytes], bz2.BZ2File(file))
    if start == b"\xfd7zXZ\x00":
        return cast(IO[bytes], lzma.LZMAFile(file))
    return file
