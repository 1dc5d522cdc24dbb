"""Memory-mapped files of a shared memory folder, and the reuse of files of deleted blobs.

Touching fresh pages takes ten times as long as the copy, and mapping them as long again. So the file of a deleted
blob is kept for the next blob of its kind, whose writer and readers have it mapped already. Keys that differ only in
their last number are of one kind: the payloads of one worker, the versions of the center.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from contextlib import suppress
from functools import lru_cache
from typing import Final
from urllib.parse import quote

SPARE: Final = ".spare"  # begins the name of a file that waits
SPARES: Final = 4  # of a kind, at most
MAPPED: Final = 6  # files of a kind that a process keeps mapped, at most
FILE_MODE: Final = 0o600


@lru_cache(maxsize=64)  # it is asked for several times in the life of a blob
def file_name(key: str) -> str:
    """The name of this blob's file in its folder."""
    name = quote(key, safe=":")
    return f"%2E{name[1:]}" if name.startswith(".") else name


@lru_cache(maxsize=64)
def kind_of(key: str) -> str:
    """The key without its last number."""
    parts = key.split(":")
    for place in reversed(range(len(parts))):
        if parts[place].isdigit():
            return ":".join([*parts[:place], "", *parts[place + 1 :]])
    return key


class MappedFiles:
    """The files of one folder; for one thread at a time."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._maps: dict[str, OrderedDict[int, mmap.mmap]] = {}

    def known(self, kind: str, status: os.stat_result) -> memoryview | None:
        """The memory of this file, if it is mapped."""
        files = self._maps.get(kind)
        memory = None if files is None else files.get(status.st_ino)
        if files is None or memory is None or len(memory) != status.st_size:
            return None
        files.move_to_end(status.st_ino)
        return memoryview(memory)

    def memory_of(self, kind: str, file: int, status: os.stat_result) -> memoryview:
        """The memory of an open file, readable and writable. Raises `OSError`.

        A mapped file keeps its inode, even without a name, so its inode number is unique.
        """
        known = self.known(kind, status)
        if known is not None:
            return known
        if not status.st_size:
            return memoryview(b"")  # what is empty cannot be mapped
        populate = getattr(mmap, "MAP_POPULATE", 0)
        try:
            memory = mmap.mmap(file, status.st_size, mmap.MAP_SHARED | populate)
        except ValueError as error:  # it was cut meanwhile
            raise OSError(str(error)) from None
        files = self._maps.setdefault(kind, OrderedDict())
        files[status.st_ino] = memory
        while len(files) > MAPPED:
            files.popitem(last=False)  # its memory goes with the last who looks at it
        return memoryview(memory)

    def take(self, kind: str, size: int, path: str) -> memoryview | None:
        """A spare file of this size, under a new name; None if there is none. Raises `OSError`."""
        for spare in _spares(self._folder, kind):
            with suppress(OSError):
                os.rename(spare, path)
                memory = self._open(kind, size, path)
                if memory is not None:
                    return memory
                os.unlink(path)
        return None

    def make(self, kind: str, size: int, path: str) -> memoryview:
        """A new file. Raises `OSError`."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            os.posix_fallocate(file, 0, size)  # without room, writing would end the process
            return self.memory_of(kind, file, os.fstat(file))
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(file)

    def give_back(self, kind: str, path: str) -> None:
        """Keep the file of a deleted blob as a spare. Raises `OSError`."""
        for spare in _spares(self._folder, kind):
            if not os.path.exists(spare):
                os.rename(path, spare)
                return
        os.unlink(path)

    def drop_spares(self) -> bool:
        """Delete all spare files; returns whether there were any."""
        self.forget()
        dropped = False
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith(SPARE):
                    with suppress(OSError):
                        os.unlink(entry.path)
                        dropped = True
        return dropped

    def forget(self) -> None:
        """Unmap all files; a file that is still viewed stays mapped until then."""
        self._maps.clear()

    def _open(self, kind: str, size: int, path: str) -> memoryview | None:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            status = os.fstat(file)
            return self.memory_of(kind, file, status) if status.st_size == size else None
        finally:
            os.close(file)


@lru_cache(maxsize=64)
def _spares(folder: str, kind: str) -> tuple[str, ...]:
    stem = f"{folder}/{SPARE}.{quote(kind, safe=':')}"
    return tuple(f"{stem}.{number}" for number in range(SPARES))
