"""Solver histories on their way through the store: from workers into a checkpoint, and back after a resume."""

from __future__ import annotations

import struct
from typing import Final

import xxhash

from speedo.errors import PayloadError
from speedo.storage import keys
from speedo.storage.base import Store

EXPIRY_S: Final = 900.0  # a history that nobody fetched leaves the store by itself
MOST_BYTES: Final = 16 << 30
_HEAD: Final = struct.Struct("<4sIQQ")  # magic, slot, version, xxh3 of the body
_MAGIC: Final = b"SPH1"


def put_history(store: Store, run: str, worker: int, version: int, history: bytes) -> None:
    """Write the history that slot `worker` had at `version`. Raises `StoreError`."""
    head = _HEAD.pack(_MAGIC, worker, version, xxhash.xxh3_64_intdigest(history))
    key = keys.state(run, worker, version)
    store.write(key, head, memoryview(history), expire_s=EXPIRY_S)


def take_history(store: Store, run: str, worker: int, version: int) -> bytes:
    """Read a history and remove it. Raises `MissingKeyError`, `StoreError`; `PayloadError` if it is damaged."""
    key = keys.state(run, worker, version)
    _, size = store.read_head(key)
    if size > MOST_BYTES:
        raise PayloadError(f"{key} has {size} bytes, more than any history")
    body = bytearray(size)
    head = store.read(key, memoryview(body))
    store.delete(key)
    if len(head) != _HEAD.size:
        raise PayloadError(f"{key} is no solver history")
    if _HEAD.unpack(head) != (_MAGIC, worker, version, xxhash.xxh3_64_intdigest(body)):
        raise PayloadError(f"{key} is damaged, or another's")
    return bytes(body)
