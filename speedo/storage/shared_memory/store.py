"""A store in a shared memory folder (tmpfs) for the processes of one machine.

A blob is a file. It is written under a temporary name and renamed when it is complete, so a reader finds all of it or
nothing. Long bodies are written and read in place, as mapped memory (`place`, `view`), and their files are reused
(`MappedFiles`). The prefix of a file changes first and is restored last, so a reader that looks at a blob in place
can tell that its file was reused. The folder has mode 0700; every process that may open it may read and write all of
it.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from speedo.errors import MissingKeyError, PayloadError, StoreError, StoreUnavailableError
from speedo.storage.base import Arrived, View, address_of
from speedo.storage.keys import MAX_HEAD_BYTES, check_blob
from speedo.storage.shared_memory.folder import MEMORY
from speedo.system.failpoints import reached

_NEVER: Final = float("inf")
_PASSING: Final = "."  # begins the name of a file that is not whole yet
_LONG: Final = 64 * 1024  # bodies of this many bytes are mapped, and their files used again
_SWEEP_EVERY: Final = 1024  # writes
SPARE: Final = ".spare"  # begins the name of a file that waits
SPARES: Final = 4  # of a kind, at most
MAPPED: Final = 6  # files of a kind that a process keeps mapped, at most
FILE_MODE: Final = 0o600
_NUMBERS: Final = itertools.count(1)  # in one process passing names must differ

# A file begins with a prefix: what it holds, how long, and until when.
_MAGIC: Final = b"SPM2"
# magic, bytes of head and of body, expiry, number of the write
_STRUCT: Final = struct.Struct("<4sIQdQ")
PREFIX_BYTES: Final = _STRUCT.size
TAKEN: Final = bytes(PREFIX_BYTES)  # of a file that is being filled
BODY_AT: Final = 8192  # where a body begins: on a page of its own, behind prefix and head


class Lengths(NamedTuple):
    """Bytes of a blob's head and of its body."""

    head: int
    body: int


def prefix_of(head_bytes: int, body_bytes: int, end: float, write: int) -> bytes:
    """The prefix of a blob that expires at `end`, in seconds; `write` is unique."""
    return _STRUCT.pack(_MAGIC, head_bytes, body_bytes, end, write)


def look(prefix: bytes, size: int, key: str, folder: str, now: float) -> Lengths:
    """The lengths in the prefix of `key`'s file of `size` bytes; raises `MissingKeyError`, `PayloadError`."""
    if prefix == TAKEN:
        raise MissingKeyError(f"{key} is not in {folder}")
    sound = len(prefix) == PREFIX_BYTES
    magic, head, body, end, _ = _STRUCT.unpack(prefix) if sound else (b"", 0, 0, 0.0, 0)
    if magic != _MAGIC or head > MAX_HEAD_BYTES:
        raise PayloadError(f"{key} in {folder} is damaged, or not of this version")
    if size != BODY_AT + body:
        raise PayloadError(f"{key} in {folder} is damaged: {size} bytes in all")
    if end <= now:
        raise MissingKeyError(f"{key} is no longer in {folder}: it has expired")
    return Lengths(head, body)


def has_expired(prefix: bytes, now: float) -> bool:
    """Whether a blob with this prefix has expired; False for bytes that are no prefix."""
    return len(prefix) == PREFIX_BYTES and _STRUCT.unpack(prefix)[3] <= now


def check_length(key: str, found: int, expected: int) -> None:
    """Refuse a body of another length than its reader expects."""
    if found != expected:
        raise PayloadError(f"{key} has a body of {found} bytes, {expected} were expected")


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
    """The files of one folder, and the reuse of those of deleted blobs; for one thread at a time.

    Touching fresh pages takes ten times as long as the copy, and mapping them as long again. So the file of a deleted
    blob is kept for the next blob of its kind, whose writer and readers have it mapped already. Keys that differ only
    in their last number are of one kind: the payloads of one worker, the versions of the center.
    """

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


class SharedMemoryStore:
    """Blobs in `folder`. `clock` gives seconds that all processes of the machine share, as `time.monotonic` does.

    An expired blob is invisible at once, and removed at the next sweep, which every writer makes from time to time.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = str(folder), clock
        self._files = MappedFiles(self._folder)
        self._placed: tuple[str, str, memoryview] | None = None  # kind, passing name, whole file

    def __repr__(self) -> str:
        return f"SharedMemoryStore({self.address})"

    @property
    def address(self) -> str:
        """The folder."""
        return self._folder

    def place(self, key: str, nbytes: int) -> memoryview | None:
        """See `Store.place`."""
        if nbytes < _LONG:
            return None
        try:
            return self._take(key, nbytes)[BODY_AT:]
        except OSError:
            return None  # `write` will say it

    def write(
        self, key: str, head: bytes, body: memoryview, *, expire_s: float | None = None
    ) -> None:
        """See `Store.write`. Raises `StoreUnavailableError` if the memory is full."""
        check_blob(key, head)
        end = _NEVER if expire_s is None else self._clock() + expire_s
        prefix = prefix_of(len(head), len(body), end, time.monotonic_ns())
        try:
            if len(body) >= _LONG:
                passing = self._write_mapped(key, prefix, head, body)
            else:
                passing = self._write_short(prefix, head, body)
            reached("worker-pushing")
            os.rename(passing, self._path(key))
        except OSError as error:
            self._discard()
            if error.errno == errno.ENOSPC and self._files.drop_spares():
                return self.write(key, head, body, expire_s=expire_s)
            raise self._error(f"writing {key}", error) from None
        self._placed = None
        if next(_NUMBERS) % _SWEEP_EVERY == 0:
            self._sweep()

    def read_head(self, key: str) -> tuple[bytes, int]:
        """See `Store.read_head`."""
        with self._opened(key) as (_, head, body_bytes):
            return head, body_bytes

    def view(self, key: str, nbytes: int) -> View | None:
        """See `Store.view`."""
        if nbytes < _LONG:
            return None
        memory = self._memory(key)
        prefix = bytes(memory[:PREFIX_BYTES])
        lengths = look(prefix, len(memory), key, self._folder, self._clock())
        check_length(key, lengths.body, nbytes)
        head = bytes(memory[PREFIX_BYTES : PREFIX_BYTES + lengths.head])

        def check() -> None:
            self._look_again(key, bytes(memory[:PREFIX_BYTES]), prefix)

        check()  # the head is that of this blob
        return View(head, memory[BODY_AT:], check)

    def read(self, key: str, into: memoryview, arrived: Arrived | None = None) -> bytes:
        """See `Store.read`."""
        view = self.view(key, len(into))
        if view is not None:
            into[:] = view.body
            view.check()
            return view.head
        with self._opened(key) as (file, head, body_bytes):
            check_length(key, body_bytes, len(into))
            os.preadv(file, [into], BODY_AT)
            return head

    def delete(self, *keys: str) -> None:
        """See `Store.delete`."""
        for key in keys:
            self.remove(key)

    def remove(self, key: str) -> bool:
        """Delete a blob; returns whether there was one. Raises `StoreError`."""
        path = self._path(key)
        try:
            if os.stat(path).st_size < BODY_AT + _LONG:
                os.unlink(path)
            else:
                self._files.give_back(kind_of(key), path)
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
        return sorted(name for name in names if name.startswith(prefix))

    def ping(self) -> None:
        """See `Store.ping`."""
        if not os.path.isdir(self._folder):
            raise StoreUnavailableError(f"{self._folder} is gone: the run that made it has ended")

    def close(self) -> None:
        """See `Store.close`."""
        self._discard()
        self._files.forget()

    # ------------------------------------------------------------ inside

    def _take(self, key: str, nbytes: int) -> memoryview:
        """A file for a body of this length, not visible yet. Raises `OSError`."""
        kind = kind_of(key)
        if self._placed is not None:
            if self._placed[0] == kind and len(self._placed[2]) == BODY_AT + nbytes:
                return self._placed[2]
            self._discard()
        passing = self._passing()
        memory = self._files.take(kind, BODY_AT + nbytes, passing)
        if memory is None:
            self._sweep()  # a killed writer leaves a file, and its successor needs one
            memory = self._files.make(kind, BODY_AT + nbytes, passing)
        self._placed = (kind, passing, memory)
        memory[:PREFIX_BYTES] = TAKEN
        return memory

    def _discard(self) -> None:
        """Remove the file that was taken and will not be written."""
        placed, self._placed = self._placed, None
        if placed is not None:
            with suppress(OSError):
                os.unlink(placed[1])

    def _write_mapped(self, key: str, prefix: bytes, head: bytes, body: memoryview) -> str:
        memory = self._take(key, len(body))
        assert self._placed is not None
        if address_of(body) != address_of(memory) + BODY_AT:
            memory[BODY_AT:] = body
        memory[PREFIX_BYTES : PREFIX_BYTES + len(head)] = head
        memory[:PREFIX_BYTES] = prefix
        return self._placed[1]

    def _write_short(self, prefix: bytes, head: bytes, body: memoryview) -> str:
        passing = self._passing()
        try:
            file = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            try:
                os.truncate(file, BODY_AT)
                for part, place in ((body, BODY_AT), (prefix + head, 0)):
                    if os.pwrite(file, part, place) < len(part):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(file)
        except OSError:
            with suppress(OSError):
                os.unlink(passing)
            raise
        return passing

    def _passing(self) -> str:
        return f"{self._folder}/{_PASSING}{os.getpid()}.{next(_NUMBERS)}"

    def _path(self, key: str) -> str:
        return f"{self._folder}/{file_name(key)}"

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, bytes, int]]:
        """The blob's file, its head and the bytes of its body; at the end it must still be that blob's."""
        try:
            file = os.open(self._path(key), os.O_RDWR | os.O_CLOEXEC)
            try:
                prefix, size = os.pread(file, PREFIX_BYTES, 0), os.fstat(file).st_size
                lengths = look(prefix, size, key, self._folder, self._clock())
                yield file, os.pread(file, lengths.head, PREFIX_BYTES), lengths.body
                self._look_again(key, os.pread(file, PREFIX_BYTES, 0), prefix)
            finally:
                os.close(file)
        except FileNotFoundError:
            raise MissingKeyError(f"{key} is not in {self._folder}") from None
        except OSError as error:
            raise self._error(f"reading {key}", error) from None

    def _look_again(self, key: str, prefix: bytes, before: bytes) -> None:
        """Check after reading that the file is still that of the blob."""
        if prefix != before:
            raise MissingKeyError(
                f"{key} in {self._folder} was replaced, deleted or expired while it was read"
            )

    def _memory(self, key: str) -> memoryview:
        """The whole file of this blob, to read; not opened again if it is mapped."""
        kind, path = kind_of(key), self._path(key)
        try:
            memory = self._files.known(kind, os.stat(path))
            if memory is None:
                file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    memory = self._files.memory_of(kind, file, os.fstat(file))
                finally:
                    os.close(file)
            return memory.toreadonly()
        except FileNotFoundError:
            raise MissingKeyError(f"{key} is not in {self._folder}") from None
        except OSError as error:
            raise self._error(f"reading {key}", error) from None

    def _sweep(self) -> None:
        """Remove expired blobs, and unfinished files of writers that died."""
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError, ValueError):
                    if self._is_over(entry):
                        os.unlink(entry.path)

    def _is_over(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith(_PASSING):
            return not os.path.exists(f"/proc/{int(entry.name.split('.')[1])}")
        with open(entry.path, "rb") as file:
            return has_expired(file.read(PREFIX_BYTES), self._clock())

    def _error(self, what: str, error: OSError) -> StoreError:
        if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
            return StoreUnavailableError(
                f"{self._folder} is full ({what}): give {MEMORY} more room, or use --same-node redis"
            )
        if error.errno == errno.ENOENT:
            return StoreUnavailableError(f"{self._folder} is gone ({what})")
        return StoreError(f"{self._folder}: {what}: {error.strerror or error}")
