"""Caffe's files: small ones in a folder of the engine, which Caffe only reads, and large ones in memory.

Caffe aborts the process if it cannot write, and does not notice if the end of a file is lost. So it writes to memory,
and Python writes to the disk, where an error is an exception with its reason.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from caffenets.files import written_whole
from speedo.errors import EngineError

_CHUNK_BYTES = 1 << 20


@contextmanager
def memory_file() -> Iterator[tuple[IO[bytes], str]]:
    """An open file in memory, and the name by which native code of this process can open it too."""
    file, name = open_memory_file()
    with file:
        yield file, name


def open_memory_file() -> tuple[IO[bytes], str]:
    """As `memory_file`; the caller closes it."""
    file = os.fdopen(os.memfd_create("speedo"), "w+b", buffering=0)
    return file, f"/proc/self/fd/{file.fileno()}"


def write_out(file: IO[bytes], path: Path) -> None:
    """Copy an open file to `path`: flushed to the disk, whole or not at all. Raises `OSError`, and leaves no part."""
    file.seek(0)
    with written_whole(path) as out:
        shutil.copyfileobj(file, out, _CHUNK_BYTES)


def folder_in(scratch: Path | None) -> tempfile.TemporaryDirectory[str]:
    """A folder for one engine; raises `EngineError` if there is no room for it."""
    try:
        return tempfile.TemporaryDirectory(prefix="speedo-engine-", dir=scratch)
    except OSError as error:
        raise EngineError(
            f"no folder for Caffe's small files in {scratch or tempfile.gettempdir()}: {error.strerror or error}; "
            "make room there"
        ) from None


class WrittenModel:
    """A `.caffemodel` in memory: `write` may be called in any thread, and frees it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, path: Path) -> None:
        """Write it, in place by renaming; `EngineError` if it cannot be."""
        with self._file:
            try:
                write_out(self._file, path)
            except OSError as error:
                raise EngineError(
                    f"cannot write the model {path}: {error.strerror or error}"
                ) from error
