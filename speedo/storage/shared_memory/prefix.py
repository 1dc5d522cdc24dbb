"""What a file of the shared-memory store begins with: what it holds, how long, and until when."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from speedo.errors import MissingKeyError, PayloadError
from speedo.storage.base import MAX_HEAD_BYTES

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
    """Of a blob that expires at `end`, in seconds; no other has the number `write`."""
    return _STRUCT.pack(_MAGIC, head_bytes, body_bytes, end, write)


def look(prefix: bytes, size: int, key: str, folder: str, now: float) -> Lengths:
    """What the prefix of `key`'s file, which has `size` bytes, says; raises `MissingKeyError`, `PayloadError`."""
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
    """Whether a blob with this prefix is over; false of what is no prefix."""
    return len(prefix) == PREFIX_BYTES and _STRUCT.unpack(prefix)[3] <= now


def check_length(key: str, found: int, expected: int) -> None:
    """Refuse a body that does not have the bytes which its reader expects."""
    if found != expected:
        raise PayloadError(f"{key} has a body of {found} bytes, {expected} were expected")
