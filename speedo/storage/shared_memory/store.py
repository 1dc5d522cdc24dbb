"""A store in a shared memory folder (tmpfs) for the processes of one machine.

A body that is made in memory of the store (`place`), as vectors are, is in a slot (`slots.py`), where others look at it
(`view`). Any other blob is a file, which is written under a temporary name and renamed when it is complete, so a reader
finds all of it or nothing. The folder has mode 0700; every process that may open it may read and write all of it.
"""

from __future__ import annotations

import errno
import itertools
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from speedo.errors import MissingKeyError, PayloadError, StoreError, StoreUnavailableError
from speedo.storage.base import Arrived, View
from speedo.storage.keys import check_blob
from speedo.storage.shared_memory.folder import MEMORY
from speedo.storage.shared_memory.slots import FILE_MODE, Found, Slots
from speedo.system.failpoints import reached

_NEVER: Final = float("inf")
_PASSING: Final = "."  # begins the name of a file that is not whole yet
_LONG: Final = 64 * 1024  # bodies of this many bytes get slots
_SWEEP_EVERY: Final = 1024  # writes
_NUMBERS: Final = itertools.count(1)  # in one process passing names must differ

# A file is a prefix, a head and a body.
_MAGIC: Final = b"SPM3"
_PREFIX: Final = struct.Struct("<4sIQd")  # magic, bytes of head and of body, expiry


class SharedMemoryStore:
    """Blobs in `folder`. `clock` gives seconds that all processes of the machine share, as `time.monotonic` does.

    An expired blob is invisible at once, and removed at the next sweep, which every writer makes from time to time.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = str(folder), clock
        self._slots = Slots(self._folder, clock)

    def __repr__(self) -> str:
        return f"SharedMemoryStore({self.address})"

    @property
    def address(self) -> str:
        """The folder."""
        return self._folder

    @property
    def is_one_memory(self) -> bool:
        """See `Store.is_one_memory`."""
        return True

    def place(self, key: str, nbytes: int) -> memoryview | None:
        """See `Store.place`."""
        if nbytes < _LONG:
            return None
        try:
            return self._slots.place(key, nbytes)
        except OSError:
            return None  # `write` will say it

    def write(
        self, key: str, head: bytes, body: memoryview, *, expire_s: float | None = None
    ) -> None:
        """See `Store.write`. Raises `StoreUnavailableError` if the memory is full."""
        check_blob(key, head)
        end = _NEVER if expire_s is None else self._clock() + expire_s
        if next(_NUMBERS) % _SWEEP_EVERY == 0:
            self._sweep()
        if self._slots.write(key, head, body, end):
            with suppress(OSError):
                os.unlink(self._path(key))
            return
        try:
            try:
                self._write_file(key, head, body, end)
            except OSError:
                self._slots.sweep(own=True)
                self._write_file(key, head, body, end)
        except OSError as error:
            raise self._error(f"writing {key}", error) from None
        self._empty(key)

    def read_head(self, key: str) -> tuple[bytes, int]:
        """See `Store.read_head`."""
        found = self._slots.find(key)
        if found is not None:
            return found.head, len(found.slot.body)
        with self._opened(key) as (_, head, body_bytes):
            return head, body_bytes

    def view(self, key: str, nbytes: int) -> View | None:
        """See `Store.view`."""
        found = self._slots.find(key) if nbytes >= _LONG else None
        if found is None:
            return None
        check_length(key, len(found.slot.body), nbytes)
        return View(found.head, found.slot.body.toreadonly(), lambda: self._check(key, found))

    def read(self, key: str, into: memoryview, arrived: Arrived | None = None) -> bytes:
        """See `Store.read`."""
        found = self._slots.find(key)
        if found is not None:
            check_length(key, len(found.slot.body), len(into))
            into[:] = found.slot.body
            self._check(key, found)
            return found.head
        with self._opened(key) as (file, head, body_bytes):
            check_length(key, body_bytes, len(into))
            file.readinto(into)
            return head

    def delete(self, *keys: str) -> None:
        """See `Store.delete`."""
        for key in keys:
            self.remove(key)

    def remove(self, key: str) -> bool:
        """Delete a blob; returns whether there was one. Raises `StoreError`."""
        if self._empty(key):
            return True
        try:
            os.unlink(self._path(key))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._error(f"deleting {key}", error) from None
        return True

    def keys(self, prefix: str) -> list[str]:
        """See `Store.keys`."""
        self._sweep()
        try:
            names = [unquote(name) for name in os.listdir(self._folder) if name[0] != _PASSING]
        except OSError as error:
            raise self._error("listing keys", error) from None
        return sorted(name for name in {*names, *self._slots.keys()} if name.startswith(prefix))

    def ping(self) -> None:
        """See `Store.ping`."""
        if not os.path.isdir(self._folder):
            raise StoreUnavailableError(f"{self._folder} is gone: the run that made it has ended")

    def close(self) -> None:
        """See `Store.close`."""
        self._slots.close()

    # ------------------------------------------------------------ inside

    def _write_file(self, key: str, head: bytes, body: memoryview, end: float) -> None:
        passing = f"{self._folder}/{_PASSING}{os.getpid()}.{next(_NUMBERS)}"
        try:
            opened = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            with open(opened, "wb") as file:
                file.write(_PREFIX.pack(_MAGIC, len(head), len(body), end) + head)
                file.write(body)
            reached("worker-pushing")
            os.rename(passing, self._path(key))
        except OSError:
            with suppress(OSError):
                os.unlink(passing)
            raise

    def _path(self, key: str) -> str:
        name = quote(key, safe=":")
        return f"{self._folder}/{f'%2E{name[1:]}' if name.startswith(_PASSING) else name}"

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[BufferedReader, bytes, int]]:
        """The blob's file, open where its body begins; its head and the bytes of its body."""
        try:
            with open(self._path(key), "rb") as file:
                prefix = file.read(_PREFIX.size).ljust(_PREFIX.size)
                magic, head_bytes, body_bytes, end = _PREFIX.unpack(prefix)
                size = os.fstat(file.fileno()).st_size
                if magic != _MAGIC or size != _PREFIX.size + head_bytes + body_bytes:
                    raise PayloadError(f"{key} in {self._folder} is damaged: {size} bytes in all")
                if end <= self._clock():
                    raise MissingKeyError(f"{key} is no longer in {self._folder}: it has expired")
                yield file, file.read(head_bytes), body_bytes
        except FileNotFoundError:
            raise MissingKeyError(f"{key} is not in {self._folder}") from None
        except OSError as error:
            raise self._error(f"reading {key}", error) from None

    def _empty(self, key: str) -> bool:
        """Delete what is in a slot under this key; whether there was something."""
        found = self._slots.find(key)
        if found is not None:
            found.slot.empty()
        return found is not None

    def _check(self, key: str, found: Found) -> None:
        """Refuse what was read if its body is not in the slot any more."""
        if not found.stays:
            raise MissingKeyError(
                f"{key} in {self._folder} was replaced, deleted or expired while it was read"
            )

    def _sweep(self) -> None:
        """Remove expired blobs, and what writers that died left unfinished."""
        self._slots.sweep()
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError, ValueError):
                    if self._is_over(entry):
                        os.unlink(entry.path)

    def _is_over(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith(_PASSING):
            return not os.path.exists(f"/proc/{int(entry.name.split('.')[1])}")
        with open(entry.path, "rb") as file:
            magic, _, _, end = _PREFIX.unpack(file.read(_PREFIX.size).ljust(_PREFIX.size))
        return bool(magic == _MAGIC and end <= self._clock())

    def _error(self, what: str, error: OSError) -> StoreError:
        if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
            return StoreUnavailableError(
                f"{self._folder} is full ({what}): give {MEMORY} more room, or use --same-node redis"
            )
        if error.errno == errno.ENOENT:
            return StoreUnavailableError(f"{self._folder} is gone ({what})")
        return StoreError(f"{self._folder}: {what}: {error.strerror or error}")


def check_length(key: str, found: int, expected: int) -> None:
    """Refuse a body of another length than its reader expects."""
    if found != expected:
        raise PayloadError(f"{key} has a body of {found} bytes, {expected} were expected")
