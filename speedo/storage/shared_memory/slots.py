"""Bodies in mapped memory, written in place: a slot is a file that one process writes and others map.

Fresh pages take ten times as long as a copy. So a slot is used again for bodies of its kind, of keys that differ only
in their last number: the payloads of a worker, the versions of the center.

A slot's generation, which only its writer changes, is odd while a body is there. The writer makes it even before it
fills the slot, and odd at the end, so nobody sees the body of a killed writer; who reads compares it before and after.
Another process deletes the body by writing its generation beside it; the writer then uses the slot again. So nobody
waits for anybody, and a process that was stopped and goes on after it was replaced writes into its own slots alone. A
lock on the file tells that the writer lives; a dead one's slot is removed once no body is there.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import secrets
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from speedo.storage.base import address_of
from speedo.system.failpoints import reached

FILE_MODE: Final = 0o600
SLOT: Final = ".slot@"  # begins the name of a slot's file; kind, "@" and a random number follow
BODY_AT: Final = 8192  # on a page of its own, behind the words, key and head
_GENERATION, _DELETED = 0, 1  # words of 8 bytes, each read and written at once
_HEAD: Final = struct.Struct("<IId")  # bytes of key and head, expiry
_HEAD_AT: Final = 16
_KEY_AT: Final = _HEAD_AT + _HEAD.size
_LAST_NUMBER: Final = re.compile(r"\d+(?!.*\d)")


@lru_cache(maxsize=64)
def _kind_of(key: str) -> str:
    return _LAST_NUMBER.sub("", key)


class Found(NamedTuple):
    """A body in a slot."""

    slot: Slot
    generation: int
    key: bytes
    head: bytes

    @property
    def stays(self) -> bool:
        """Whether it is still there."""
        return self.slot.generation == self.generation


class Slot:
    """The mapped file at `path`, of this process's own if `file` is the one that it has locked. Raises `OSError`."""

    def __init__(self, path: str, file: int | None = None) -> None:
        self.path, self.file = path, file
        flags = mmap.MAP_SHARED | (0 if file is None else getattr(mmap, "MAP_POPULATE", 0))
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC) if file is None else file
        try:
            size = os.fstat(opened).st_size
            if size <= BODY_AT:
                raise OSError(f"{path} is no slot")
            self._memory = memoryview(mmap.mmap(opened, size, flags))
        finally:
            if file is None:
                os.close(opened)
        self._words, self.body = self._memory[:_HEAD_AT].cast("Q"), self._memory[BODY_AT:]

    @property
    def generation(self) -> int:
        """Of the body that is there; 0 if there is none."""
        generation = self._words[_GENERATION]
        return generation if generation % 2 and self._words[_DELETED] != generation else 0

    def fill(self, key: str, head: bytes, end: float) -> None:
        """Show the body that was written into this empty slot of its own, until `end`."""
        name = key.encode()
        _HEAD.pack_into(self._memory, _HEAD_AT, len(name), len(head), end)
        self._memory[_KEY_AT : _KEY_AT + len(name) + len(head)] = name + head
        self._words[_GENERATION] += 1

    def empty(self) -> None:
        """Delete the body, if there is one."""
        if self.file is None:
            self._words[_DELETED] = self.generation
        elif self._words[_GENERATION] % 2:
            self._words[_GENERATION] += 1

    def look(self, now: float) -> Found | None:
        """The body that is there and has not expired."""
        generation = self.generation
        if not generation:
            return None
        key_bytes, head_bytes, end = _HEAD.unpack_from(self._memory, _HEAD_AT)
        stop = _KEY_AT + key_bytes
        key, head = self._memory[_KEY_AT:stop], self._memory[stop : stop + head_bytes]
        found = Found(self, generation, bytes(key), bytes(head))
        return found if end > now and found.stays else None

    def remove(self) -> None:
        """Remove the file if it is this process's own; the memory goes with the last who looks at it."""
        file, self.file = self.file, None
        if file is not None:
            with suppress(OSError):
                os.unlink(self.path)
            os.close(file)


class Slots:
    """The slots in `folder`, for one thread at a time. `clock` is that of expiries."""

    def __init__(self, folder: str, clock: Callable[[], float]) -> None:
        self._folder, self._clock = folder, clock
        self._slots: dict[str, dict[str, Slot]] = {}  # by kind and path, own ones and others
        self._placed: dict[str, Slot] = {}  # by kind, what is lent and not written yet

    def place(self, key: str, nbytes: int) -> memoryview:
        """Memory for a body of this kind, the same until it is written. Raises `OSError`."""
        kind = _kind_of(key)
        slot = self._placed.get(kind)
        if slot is None or len(slot.body) != nbytes:
            slot = self._placed[kind] = self._empty(kind, nbytes)
            slot.empty()
        return slot.body

    def write(self, key: str, head: bytes, body: memoryview, end: float) -> bool:
        """Show a body that is where `place` said; False if it is not."""
        kind = _kind_of(key)
        slot = self._placed.get(kind)
        if slot is None or address_of(body) != address_of(slot.body):
            return False
        former = list(self._known(key))
        reached("worker-pushing")
        slot.fill(key, head, end)
        del self._placed[kind]
        for one in former:
            one.slot.empty()
        return True

    def find(self, key: str) -> Found | None:
        """The body of this key, if it is in a slot."""
        found = next(self._known(key), None)
        if found is None and self._list(_kind_of(key)):
            found = next(self._known(key), None)
        return found

    def keys(self) -> list[str]:
        """The keys of all bodies."""
        self._list(*{unquote(name.split("@")[1]) for name in self._names()})
        now = self._clock()
        return [found.key.decode() for slot in self._all() if (found := slot.look(now))]

    def sweep(self, *, own: bool = False) -> None:
        """Remove empty slots of dead writers, and one's `own`; forget those that are gone."""
        for name in self._names():
            with suppress(OSError):
                self._remove_if_left(f"{self._folder}/{name}")
        for slot in self._all():
            if own and not slot.generation and slot not in self._placed.values():
                slot.remove()
        self._list(*self._slots)

    def close(self) -> None:
        """Remove one's own that are empty, let go of all."""
        self._placed.clear()
        self.sweep(own=True)
        for slot in self._all():
            if slot.file is not None:
                os.close(slot.file)
        self._slots.clear()

    # ------------------------------------------------------------ inside

    def _empty(self, kind: str, nbytes: int) -> Slot:
        for slot in list(self._slots.get(kind, {}).values()):
            if slot.file is not None and not slot.generation and len(slot.body) == nbytes:
                return slot
            if not slot.look(self._clock()):  # who still reads what has expired has it mapped
                slot.remove()
        self.sweep()
        try:
            return self._make(kind, nbytes)
        except OSError:
            self.sweep(own=True)
            return self._make(kind, nbytes)

    def _make(self, kind: str, nbytes: int) -> Slot:
        passing = f"{self._folder}/.{os.getpid()}.{secrets.token_hex(8)}"
        path = f"{self._folder}/{SLOT}{quote(kind, safe=':')}@{secrets.token_hex(8)}"
        file = os.open(passing, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            os.posix_fallocate(file, 0, BODY_AT + nbytes)  # without room, writing would end us
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            slot = Slot(path, file)
            os.rename(passing, path)
        except OSError:
            os.close(file)
            os.unlink(passing)
            raise
        self._slots.setdefault(kind, {})[path] = slot
        return slot

    def _known(self, key: str) -> Iterator[Found]:
        kind, wanted, now = _kind_of(key), key.encode(), self._clock()
        for slot in self._slots.get(kind, {}).values():
            found = slot.look(now)
            if found is not None and found.key == wanted:
                yield found

    def _list(self, *kinds: str) -> bool:
        """Map the slots of these kinds that others have made, forget those that are gone; whether there are any."""
        names = self._names()
        for kind in kinds:
            known, begin = self._slots.get(kind, {}), f"{SLOT}{quote(kind, safe=':')}@"
            self._slots[kind] = {}
            for path in (f"{self._folder}/{name}" for name in names if name.startswith(begin)):
                with suppress(OSError):
                    self._slots[kind][path] = known.get(path) or Slot(path)
        return bool(names)

    def _remove_if_left(self, path: str) -> None:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if its writer lives
            if Slot(path).look(self._clock()) is None:
                os.unlink(path)
        finally:
            os.close(file)

    def _all(self) -> list[Slot]:
        return [slot for slots in self._slots.values() for slot in slots.values()]

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if name.startswith(SLOT)]
        except OSError:
            return []
