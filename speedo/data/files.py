"""Files that users name: read whole, and never more than they may hold.

A file may be a pipe that nobody writes to, a device without end, or a few kilobytes that unpack to all of memory.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
import zlib
from io import BufferedReader
from pathlib import Path
from typing import IO, Final, cast

from speedo.errors import DataError

# What the decompressors of the standard library raise for damaged input, beside OSError.
DAMAGE: Final = (EOFError, zlib.error, lzma.LZMAError)


def open_file(path: Path) -> BufferedReader:
    """Open a regular file; raises DataError for anything else, and never waits for one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path} cannot be read: {why}; correct its name or its rights") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DataError(f"{path} is no regular file: name a file that can be read to its end")
    return os.fdopen(descriptor, "rb")


def read_file(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file of at most so many bytes; raises DataError."""
    with open_file(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most_bytes:
            raise DataError(
                f"{path} has {size:,} bytes, more than the {most_bytes:,} that such a file may have: "
                "name another file"
            )
        try:
            return stream.read(most_bytes)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


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
        """Let so many bytes more be read."""
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
