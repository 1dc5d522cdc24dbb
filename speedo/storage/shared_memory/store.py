"""A store in a shared memory folder (tmpfs) for the processes of one machine.

Each blob is in a file (`slots.py`), which is mapped to write and to read it. A body that is made in the store's memory
(`place`), as vectors are, gets a slot that its process keeps. Fresh pages take ten times as long as a copy, so it is
used again for bodies of its kind, of keys that differ only in their last number: the payloads of a worker, the versions
of the center. Any other blob has a file of its own, renamed to its key when it is complete.

The folder has mode 0700; every process that may open it may read and write all of it.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from speedo.errors import MissingKeyError, PayloadError, StoreError, StoreUnavailableError
from speedo.storage.base import Arrived, View, address_of
from speedo.storage.keys import check_blob
from speedo.storage.shared_memory.folder import MEMORY
from speedo.storage.shared_memory.slots import BODY_AT, FILE_MODE, Found, Slot, remove_if_over
from speedo.system.failpoints import reached

_NEVER: Final = float("inf")
_PASSING: Final = "."  # begins the name of a file that is not whole yet
# Begins that of a slot that is used again: kind, "@" and a random number follow.
_SLOT: Final = ".slot@"
_SWEEP_EVERY: Final = 1024  # writes
_LAST_NUMBER: Final = re.compile(r"\d+(?!.*\d)")


@lru_cache(maxsize=64)
def _kind_of(key: str) -> str:
    return quote(_LAST_NUMBER.sub("", key), safe=":")


class SharedMemoryStore:
    """Blobs in `folder`. `clock` gives seconds that all processes of the machine share, as `time.monotonic` does.

    An expired blob is invisible at once, and removed at the next sweep, which every writer makes from time to time.
    """

    is_one_memory: Final = True

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = str(folder), clock
        self._slots: dict[str, dict[str, Slot]] = {}  # by kind and path, own ones and others'
        self._placed: dict[str, Slot] = {}  # by kind, what is lent and not written yet
        self._writes = 0

    def __repr__(self) -> str:
        return f"SharedMemoryStore({self.address})"

    @property
    def address(self) -> str:
        """The folder."""
        return self._folder

    def place(self, key: str, nbytes: int) -> memoryview | None:
        kind = _kind_of(key)
        slot = self._placed.get(kind)
        if slot is None or len(slot.body) != nbytes:
            try:
                slot = self._placed[kind] = self._empty_slot(kind, nbytes)
            except OSError:
                return None  # `write` will say it
            slot.clear()
        return slot.body

    def write(
        self, key: str, head: bytes, body: memoryview, *, expire_s: float | None = None
    ) -> None:
        """See `Store.write`. Raises `StoreUnavailableError` if the memory is full."""
        check_blob(key, head)
        end = _NEVER if expire_s is None else self._clock() + expire_s
        kind = _kind_of(key)
        self._writes += 1
        if self._writes % _SWEEP_EVERY == 0:
            self._sweep()
        slot = self._placed.get(kind)
        with self._errors(f"writing {key}"):
            if slot is not None and address_of(slot.body) == address_of(body):
                former = self._known(key)
                reached("worker-pushing")
                slot.fill(key, head, end)
                del self._placed[kind]
            else:
                slot, passing = self._make(len(body), self._path(key))
                slot.body[:] = body
                slot.fill(key, head, end)
                reached("worker-pushing")
                os.rename(passing, slot.path)
                slot.let_go()
                former = self._known(key)
        for one in former:
            one.delete()

    def read_head(self, key: str) -> tuple[bytes, int]:
        found = self._found(key)
        return found.head, len(found.slot.body)

    def view(self, key: str, nbytes: int) -> View | None:
        found = self._found(key, nbytes)
        return View(found.head, found.slot.body.toreadonly(), lambda: self._check(key, found))

    def read(self, key: str, into: memoryview, arrived: Arrived | None = None) -> bytes:
        found = self._found(key, len(into))
        into[:] = found.slot.body
        self._check(key, found)
        return found.head

    def delete(self, *keys: str) -> None:
        for key in keys:
            self.remove(key)

    def remove(self, key: str) -> bool:
        """Delete a blob; returns whether there was one. Raises `StoreError`."""
        found = self._in_slots(key)
        for one in found:
            one.delete()
        with self._errors(f"deleting {key}"), suppress(FileNotFoundError):
            os.unlink(self._path(key))  # a slot may have hidden a file
            return True
        return bool(found)

    def keys(self, prefix: str) -> list[str]:
        self._sweep()
        with self._errors("listing keys"):
            names = os.listdir(self._folder)
        found = {unquote(name) for name in names if name[0] != _PASSING}
        self._list(*{name.split("@")[1] for name in names if name.startswith(_SLOT)})
        now = self._clock()
        found |= {one.key.decode() for slot in self._all() if (one := slot.look(now))}
        return sorted(key for key in found if key.startswith(prefix))

    def ping(self) -> None:
        if not os.path.isdir(self._folder):
            raise StoreUnavailableError(f"{self._folder} is gone: the run that made it has ended")

    def close(self) -> None:
        self._placed.clear()
        self._sweep(own=True)
        for slot in self._all():
            slot.let_go()
        self._slots.clear()

    # ------------------------------------------------------------ inside

    def _path(self, key: str) -> str:
        name = quote(key, safe=":")
        return f"{self._folder}/{f'%2E{name[1:]}' if name.startswith(_PASSING) else name}"

    def _empty_slot(self, kind: str, nbytes: int) -> Slot:
        """A slot of one's own, used again if there is one. Raises `OSError`."""
        for slot in list(self._slots.get(kind, {}).values()):
            if slot.file is not None and not slot.generation and len(slot.body) == nbytes:
                return slot
            if not slot.look(self._clock()):  # who still reads what has expired has it mapped
                slot.let_go(remove=True)
        self._sweep()
        slot, passing = self._make(nbytes, f"{self._folder}/{_SLOT}{kind}@{secrets.token_hex(8)}")
        os.rename(passing, slot.path)
        self._slots.setdefault(kind, {})[slot.path] = slot
        return slot

    def _make(self, nbytes: int, path: str) -> tuple[Slot, str]:
        """A new slot that will be at `path`, and where it is until then. Raises `OSError`."""
        passing = f"{self._folder}/{_PASSING}{os.getpid()}.{secrets.token_hex(8)}"
        file = os.open(passing, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            try:
                os.posix_fallocate(file, 0, BODY_AT + nbytes)
            except OSError:  # without room, writing would end the process
                self._sweep(own=True)
                os.posix_fallocate(file, 0, BODY_AT + nbytes)
            return Slot(path, file), passing
        except OSError:
            os.close(file)
            os.unlink(passing)
            raise

    def _found(self, key: str, nbytes: int | None = None) -> Found:
        """The blob of this key, whose body must have `nbytes` bytes. Raises what `read` raises."""
        found = next(iter(self._in_slots(key)), None)
        if found is None:
            with self._errors(f"reading {key}", key):
                found = Slot(self._path(key)).look(self._clock())
        if found is None:
            raise MissingKeyError(f"{key} is no longer in {self._folder}: it has expired")
        size = len(found.slot.body)
        if nbytes not in (None, size):
            raise PayloadError(f"{key} has a body of {size} bytes, {nbytes} were expected")
        return found

    def _in_slots(self, key: str) -> list[Found]:
        found = self._known(key)
        return self._known(key) if not found and self._list(_kind_of(key)) else found

    def _known(self, key: str) -> list[Found]:
        now, wanted = self._clock(), key.encode()
        slots = self._slots.get(_kind_of(key), {}).values()
        return [found for slot in slots if (found := slot.look(now, wanted))]

    def _check(self, key: str, found: Found) -> None:
        """Refuse what was read if its body is not there any more."""
        if not found.stays:
            raise MissingKeyError(
                f"{key} in {self._folder} was replaced, deleted or expired while it was read"
            )

    def _all(self) -> list[Slot]:
        return [slot for slots in self._slots.values() for slot in slots.values()]

    def _list(self, *kinds: str) -> bool:
        """Map the slots of these kinds that others have made, forget those that are gone; whether there are any."""
        names = list[str]()
        with suppress(OSError):
            names = [name for name in os.listdir(self._folder) if name.startswith(_SLOT)]
        for kind in kinds:
            known, self._slots[kind] = self._slots.get(kind, {}), {}
            for name in names:
                path = f"{self._folder}/{name}"
                if name.startswith(f"{_SLOT}{kind}@"):
                    with suppress(OSError, PayloadError):
                        self._slots[kind][path] = known.get(path) or Slot(path)
        return bool(names)

    def _sweep(self, *, own: bool = False) -> None:
        """Remove expired blobs and what dead writers have left, and empty slots of one's `own`."""
        with suppress(OSError):
            for name in os.listdir(self._folder):
                path = f"{self._folder}/{name}"
                with suppress(OSError, PayloadError, ValueError):
                    if name.startswith(_SLOT) or not name.startswith(_PASSING):
                        remove_if_over(path, self._clock())
                    elif not os.path.exists(f"/proc/{int(name.split('.')[1])}"):
                        os.unlink(path)
        for slot in self._all():
            if own and not slot.generation and slot not in self._placed.values():
                slot.let_go(remove=True)
        self._list(*self._slots)

    @contextmanager
    def _errors(self, what: str, key: str = "") -> Iterator[None]:
        """Errors of the system as errors of a store; with a `key` a file that is not there is that blob."""
        try:
            yield
        except FileNotFoundError:
            if key:
                raise MissingKeyError(f"{key} is not in {self._folder}") from None
            raise StoreUnavailableError(f"{self._folder} is gone ({what})") from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
                raise StoreUnavailableError(
                    f"{self._folder} is full ({what}): give {MEMORY} more room, or use --redis same_node=redis"
                ) from None
            raise StoreError(f"{self._folder}: {what}: {error.strerror or error}") from None
