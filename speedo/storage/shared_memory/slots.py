"""Bodies in mapped memory: a slot is a file that one process writes, in place, and others map.

A slot's generation, which only its writer changes, is odd while a body is there. The writer makes it even before it
fills the slot, and odd at the end, so nobody sees the body of a killed writer; who reads compares it before and after.
The process that deletes a body of another, the master for payloads of its epoch, writes that generation beside it; then
the writer uses the slot again. So nobody waits for anybody, and a process that was stopped and goes on after it was
replaced writes into its own slots alone. A lock on the file tells that the writer lives; a dead one's slot is removed
once no body is there. Generation and body are written in an order that others see (`speedo.system.memory_fence`).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from contextlib import suppress
from typing import Final, NamedTuple

from speedo.errors import PayloadError
from speedo.system.memory_fence import memory_fence

FILE_MODE: Final = 0o600
BODY_AT: Final = 8192  # on a page of its own, behind the words, key and head
_GENERATION, _DELETED = 0, 1  # words of 8 bytes, each read and written at once
_HEAD_AT: Final = 16
_MAGIC: Final = b"SPM3"
_HEAD: Final = struct.Struct("<4sIId")  # magic, bytes of key and head, expiry
_KEY_AT: Final = _HEAD_AT + _HEAD.size


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

    def delete(self) -> None:
        """Delete it; what came into the slot meanwhile stays."""
        self.slot.fence()  # what was read of it, was read before its writer uses it again
        if self.slot.file is None:
            self.slot.words[_DELETED] = self.generation
        elif self.stays:
            self.slot.clear()


class Slot:
    """The mapped file at `path`; one's own if `file`, the open file, is given. Raises `OSError`, `PayloadError`."""

    def __init__(self, path: str, file: int | None = None) -> None:
        self.path, self.file = path, file
        flags = mmap.MAP_SHARED | (0 if file is None else getattr(mmap, "MAP_POPULATE", 0))
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC) if file is None else file
        try:
            size = os.fstat(opened).st_size
            memory = memoryview(mmap.mmap(opened, size, flags) if size else b"")
        finally:
            if file is None:
                os.close(opened)
        if size < BODY_AT or (file is None and bytes(memory[_HEAD_AT : _HEAD_AT + 4]) != _MAGIC):
            raise PayloadError(f"{path} is damaged, or not of this version: {size} bytes in all")
        self._memory, self.body, self.fence = memory, memory[BODY_AT:], memory_fence()
        self.words = memory[:_HEAD_AT].cast("Q")
        if file is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            memory[_HEAD_AT : _HEAD_AT + 4] = _MAGIC

    @property
    def generation(self) -> int:
        """Of the body that is there; 0 if there is none."""
        generation = self.words[_GENERATION]
        return generation if generation % 2 and self.words[_DELETED] != generation else 0

    def fill(self, key: str, head: bytes, end: float) -> None:
        """Show the body that was written into this empty slot of one's own, until `end`."""
        name = key.encode()
        _HEAD.pack_into(self._memory, _HEAD_AT, _MAGIC, len(name), len(head), end)
        self._memory[_KEY_AT : _KEY_AT + len(name) + len(head)] = name + head
        self.fence()
        self.words[_GENERATION] += 1

    def look(self, now: float, wanted: bytes | None = None) -> Found | None:
        """The body that is there and has not expired, if its key is the `wanted` one or any will do."""
        generation = self.generation
        if not generation:
            return None
        _, key_bytes, head_bytes, end = _HEAD.unpack_from(self._memory, _HEAD_AT)
        stop = _KEY_AT + key_bytes
        key, head = bytes(self._memory[_KEY_AT:stop]), self._memory[stop : stop + head_bytes]
        if wanted is not None and key != wanted:
            return None
        found = Found(self, generation, key, bytes(head))
        return found if end > now and found.stays else None

    def clear(self) -> None:
        """Let no body be there while this slot of one's own is filled."""
        self.words[_GENERATION] += self.words[_GENERATION] % 2
        self.fence()

    def let_go(self, *, remove: bool = False) -> None:
        """Unlock it and remove its file, if it is one's own; the memory goes with the last who looks at it."""
        file, self.file = self.file, None
        if file is not None:
            if remove:
                with suppress(OSError):
                    os.unlink(self.path)
            os.close(file)


def remove_if_over(path: str, now: float) -> None:
    """Remove a slot in which nothing is, and whose writer is dead. Raises `OSError`, `PayloadError`."""
    slot = Slot(path)
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if it lives
        if slot.look(now) is None:
            os.unlink(path)
    finally:
        os.close(file)
