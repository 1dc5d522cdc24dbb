"""Files under names that another machine gave: a name is decided once, and written only below the folder meant."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

MOST_NAME_BYTES: Final = 1000  # of the whole name; file systems take 255 for a part
MOST_LEVELS: Final = 32
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND: Final = (
    os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
)


def name_below(text: str) -> PurePosixPath | None:
    """The name of a file below a folder; None for one that is absolute, leads out of it, or has unusual characters."""
    if not text.isprintable() or len(text.encode()) > MOST_NAME_BYTES:
        return None
    name = PurePosixPath(text)
    if name.is_absolute() or not name.parts or ".." in name.parts:
        return None
    if len(name.parts) > MOST_LEVELS or any(len(part.encode()) > 255 for part in name.parts):
        return None
    return name


def append_below(folder: Path, name: PurePosixPath, data: bytes, *, fresh: bool) -> None:
    """Add to a file below the folder, a new one if `fresh`; raises `OSError`, also where a part of it is a link."""
    where = os.open(folder, _FOLDER)
    try:
        for part in name.parts[:-1]:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=where)
            below = os.open(part, _FOLDER, dir_fd=where)
            os.close(where)
            where = below
        if fresh:
            with suppress(FileNotFoundError):
                os.unlink(name.name, dir_fd=where)
        with os.fdopen(os.open(name.name, _APPEND, 0o666, dir_fd=where), "ab") as file:
            file.write(data)
    finally:
        os.close(where)
