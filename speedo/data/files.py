"""Files that users name, as `caffenets.files` opens them, with its errors as DataError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from caffenets import files
from speedo.errors import DataError


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
