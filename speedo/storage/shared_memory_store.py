"""A store in a folder of memory (tmpfs) that processes of one machine share: a copy in, a copy out.

A blob is a file. It is written under a passing name and renamed when it is whole, so a reader finds all of it or
nothing. Fresh pages cost ten times the copy, so the file of a deleted blob is kept for the next of its size; a
reader that has it open still sees from its prefix, which changes first and comes last, that it was taken. The folder
belongs to one user (mode 0700); whoever may open it may read and write all of it.
"""

from __future__ import annotations

import errno
import itertools
import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from speedo.errors import MissingKeyError, PayloadError, StoreError, StoreUnavailableError
from speedo.failpoints import reached
from speedo.storage.base import MAX_HEAD_BYTES, check_blob

MEMORY: Final = Path("/dev/shm")
_MAGIC: Final = b"SPM1"
_PREFIX: Final = struct.Struct(
    "<4sIQdQ"
)  # magic, bytes of head and of body, expiry, number of the write
_TAKEN: Final = bytes(_PREFIX.size)
_NEVER: Final = float("inf")
_PASSING: Final = "."  # begins the name of a file that is not whole yet
_SPARE: Final = ".spare"  # begins the name of a file that waits for the next blob of its size
_SPARES: Final = 4  # of each size, at most
_SPARE_BYTES: Final = 64 * 1024  # shorter files are not worth it
_SWEEP_EVERY: Final = 1024  # writes
_KEEPER: Final = 'read -r _; exec rm -rf -- "$1"'


class SharedMemoryStore:
    """Blobs in `folder`. `clock` gives seconds that all processes of the machine share, as `time.monotonic` does.

    What has expired is invisible at once, and removed with the next sweep, which writers make now and then.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = str(folder), clock
        self._numbers = itertools.count(1)

    def __repr__(self) -> str:
        return f"SharedMemoryStore({self.address})"

    @property
    def address(self) -> str:
        """The folder."""
        return self._folder

    def write(
        self, key: str, head: bytes, body: memoryview, *, expire_s: float | None = None
    ) -> None:
        """See `Store.write`. Raises `StoreUnavailableError` if the memory is full."""
        check_blob(key, head)
        number = next(self._numbers)
        end = _NEVER if expire_s is None else self._clock() + expire_s
        prefix = _PREFIX.pack(_MAGIC, len(head), len(body), end, time.monotonic_ns())
        passing = f"{self._folder}/{_PASSING}{os.getpid()}.{number}"
        taken = self._take_spare(_PREFIX.size + len(head) + len(body), passing)
        try:
            file = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if taken:
                    os.pwrite(file, _TAKEN, 0)
                _write_all(file, head, body, _PREFIX.size)
                os.pwrite(file, prefix, 0)
            finally:
                os.close(file)
            reached("worker-pushing")
            os.rename(passing, self._path(key))
        except OSError as error:
            with suppress(OSError):
                os.unlink(passing)
            if error.errno == errno.ENOSPC and self._drop_spares():
                return self.write(key, head, body, expire_s=expire_s)
            raise self._error(f"writing {key}", error) from None
        if number % _SWEEP_EVERY == 0:
            self._sweep()

    def read_head(self, key: str) -> tuple[bytes, int]:
        """See `Store.read_head`."""
        file = self._open(key)
        try:
            prefix, head_bytes, body_bytes = self._look(key, file)
            head = os.pread(file, head_bytes, _PREFIX.size)
            self._look_again(key, file, prefix)
            return head, body_bytes
        except OSError as error:
            raise self._error(f"reading {key}", error) from None
        finally:
            os.close(file)

    def read(self, key: str, into: memoryview) -> bytes:
        """See `Store.read`."""
        file = self._open(key)
        try:
            prefix, head_bytes, body_bytes = self._look(key, file)
            if body_bytes != len(into):
                raise PayloadError(
                    f"{key} has a body of {body_bytes} bytes, {len(into)} were expected"
                )
            head = bytearray(head_bytes)
            _read_all(file, head, into)
            self._look_again(key, file, prefix)
            return bytes(head)
        except OSError as error:
            raise self._error(f"reading {key}", error) from None
        finally:
            os.close(file)

    def delete(self, *keys: str) -> None:
        """See `Store.delete`."""
        for key in keys:
            self.remove(key)

    def remove(self, key: str) -> bool:
        """Delete a blob; whether there was one. Raises `StoreError`."""
        path = self._path(key)
        try:
            size = os.stat(path).st_size
            if size < _SPARE_BYTES:
                os.unlink(path)
            else:
                os.rename(path, self._spare(size, next(self._numbers) % _SPARES))
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
        return None

    # ------------------------------------------------------------ inside

    def _path(self, key: str) -> str:
        name = quote(key, safe=":")
        return f"{self._folder}/{'%2E' + name[1:] if name.startswith('.') else name}"

    def _open(self, key: str) -> int:
        try:
            return os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise MissingKeyError(f"{key} is not in {self._folder}") from None
        except OSError as error:
            raise self._error(f"reading {key}", error) from None

    def _spare(self, size: int, number: int) -> str:
        return f"{self._folder}/{_SPARE}.{size}.{number}"

    def _take_spare(self, size: int, passing: str) -> bool:
        """Whether a file of this size was there, which has the passing name now."""
        if size >= _SPARE_BYTES:
            for number in range(_SPARES):
                with suppress(OSError):
                    os.rename(self._spare(size, number), passing)
                    return True
        return False

    def _drop_spares(self) -> bool:
        """Make room; whether there was any to make."""
        dropped = False
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith(_SPARE):
                    with suppress(OSError):
                        os.unlink(entry.path)
                        dropped = True
        return dropped

    def _look_again(self, key: str, file: int, prefix: bytes) -> None:
        """Whether the file is still that of the blob, after it was read."""
        if os.pread(file, _PREFIX.size, 0) != prefix:
            raise MissingKeyError(
                f"{key} in {self._folder} was replaced, deleted or expired while it was read"
            )

    def _look(self, key: str, file: int) -> tuple[bytes, int, int]:
        """The prefix, and the bytes of head and of body, which are there."""
        prefix = os.pread(file, _PREFIX.size, 0)
        if prefix == _TAKEN:
            raise MissingKeyError(f"{key} is not in {self._folder}")
        sound = len(prefix) == _PREFIX.size
        unpacked = _PREFIX.unpack(prefix) if sound else (b"", 0, 0, 0.0, 0)
        magic, head_bytes, body_bytes, end, _ = unpacked
        size = os.fstat(file).st_size
        if magic != _MAGIC or head_bytes > MAX_HEAD_BYTES:
            raise PayloadError(f"{key} in {self._folder} is damaged, or not of this version")
        if size != _PREFIX.size + head_bytes + body_bytes:
            raise PayloadError(f"{key} in {self._folder} is damaged: {size} bytes in all")
        if end <= self._clock():
            raise MissingKeyError(f"{key} is no longer in {self._folder}: it has expired")
        return prefix, head_bytes, body_bytes

    def _sweep(self) -> None:
        """Remove what has expired, and what a writer that died left unfinished."""
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError, ValueError):
                    if self._is_over(entry):
                        os.unlink(entry.path)

    def _is_over(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith(_PASSING):
            return not os.path.exists(f"/proc/{int(entry.name.split('.')[1])}")
        with open(entry.path, "rb") as file:
            prefix = file.read(_PREFIX.size)
        return len(prefix) == _PREFIX.size and _PREFIX.unpack(prefix)[3] <= self._clock()

    def _error(self, what: str, error: OSError) -> StoreError:
        if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
            return StoreUnavailableError(
                f"{self._folder} is full ({what}): give {MEMORY} more room, or use --same-node redis"
            )
        if error.errno == errno.ENOENT:
            return StoreUnavailableError(f"{self._folder} is gone ({what})")
        return StoreError(f"{self._folder}: {what}: {error.strerror or error}")


class SharedMemory:
    """A context in which a folder for a `SharedMemoryStore` exists, if `room_bytes` are free; else `path` is None.

    A small shell removes the folder, also if this process is killed.
    """

    def __init__(self, room_bytes: int, place: Path = MEMORY) -> None:
        self.path: Path | None = None
        self._room_bytes, self._place = room_bytes, place
        self._keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SharedMemory:
        with suppress(OSError):
            status = os.statvfs(self._place)
            if status.f_bavail * status.f_frsize >= self._room_bytes:
                self.path = Path(tempfile.mkdtemp(prefix="speedo-", dir=self._place))
                self._keeper = subprocess.Popen(
                    ["/bin/sh", "-c", _KEEPER, "speedo-memory", str(self.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
        return self

    def __exit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._keeper.communicate()  # the end of its input is its signal


def room_for(workers: int, model_bytes: int) -> int:
    """Bytes that a run takes in shared memory at most: payloads, versions that are still read, and spare files."""
    return model_bytes * (3 * workers + 4)


def _write_all(file: int, head: bytes, body: memoryview, place: int) -> None:
    done = os.pwritev(file, [head, body], place)
    if done < len(head):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    while done < len(head) + len(body):
        done += os.pwrite(file, body[done - len(head) :], place + done)


def _read_all(file: int, head: bytearray, body: memoryview) -> None:
    done = os.preadv(file, [head, body], _PREFIX.size) - len(head)
    while done < len(body):
        count = os.preadv(file, [body[done:]], _PREFIX.size + len(head) + done)
        if count == 0:
            raise OSError(errno.EIO, "its end is missing")
        done += count
