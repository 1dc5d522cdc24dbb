"""Writes and reads vectors and solver histories in the store, copied or in place.

What is read is checked, but for a vector that was made in memory of this machine and is read there: it carries its
squared norm in place of a checksum, so that nobody needs to pass over it once more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash

from speedo.errors import MissingKeyError, PayloadError
from speedo.exchange.codecs import Codec, check_encoding, make_codec
from speedo.exchange.ranges import history_layout
from speedo.exchange.vector import (
    FLOAT32,
    HEADER_BYTES,
    SQUARES,
    Header,
    Layout,
    RunningChecksum,
    Vector,
    as_bytes,
    check_header,
    check_sum,
    checksum,
    header_for,
    squared_norm,
)
from speedo.messages import Kind
from speedo.storage import keys
from speedo.storage.base import Store, address_of

HISTORY_EXPIRY_S: Final = 900.0  # a history that nobody fetched leaves the store by itself
MOST_HISTORY_BYTES: Final = 16 << 30
_BLOCK: Final = 1 << 20  # bytes: what was copied is still in the processor's cache
_HISTORY_HEAD: Final = struct.Struct("<4sIQQ")  # magic, slot, version, xxh3 of the body
_HISTORY_MAGIC: Final = b"SPH1"
_STATE_MAGIC: Final = b"SPR1"


@dataclass(frozen=True, slots=True)
class SeenVector:
    """A vector in the store's own memory: read-only, and valid until its blob is deleted.

    `check` raises `MissingKeyError` if it was deleted: what was computed from the vector is then invalid. `squares` is
    the squared norm of a payload as its writer found it, or None.
    """

    header: Header
    vector: Vector
    squares: float | None
    check: Callable[[], None]


def put_vector(
    store: Store,
    key: str,
    layout: Layout,
    kind: Kind,
    body: memoryview,
    *,
    expire_s: float | None = None,
    **said: int,
) -> None:
    """Write a vector as a codec has encoded it; `said` is what else its header says. Raises `StoreError`."""
    memory = store.place(key, len(body))
    stays = memory is not None and store.is_one_memory
    header = header_for(body, layout, kind, checked=not stays, **said)
    head = header.pack()
    if memory is not None:
        measured = stays and kind is not Kind.CENTER and header.dtype == FLOAT32
        squares, body = _fill(memory, body, measured=measured), memory
        head += SQUARES.pack(squares) if stays else b""
    store.write(key, head, body, expire_s=expire_s)


def _fill(memory: memoryview, body: memoryview, *, measured: bool) -> float:
    """Copy a body into memory, unless it was made there; its squared norm, if it is to be `measured`."""
    copied, squares = address_of(memory) != address_of(body), 0.0
    for start in range(0, len(body) if copied or measured else 0, _BLOCK):
        part = memory[start : start + _BLOCK]
        if copied:
            part[:] = body[start : start + _BLOCK]
        if measured:
            squares += squared_norm(np.frombuffer(part, np.float32))
    return squares


def fetch_vector(
    store: Store, key: str, layout: Layout, kind: Kind, into: Vector, codec: Codec | None = None
) -> Header:
    """Read a vector into `into`; refuses one of another kind or layout, or a damaged one.

    `codec` is the expected encoding, raw by default. Raises `MissingKeyError`, `StoreError`, `PayloadError`.
    """
    codec = codec or make_codec("none", layout)
    seen = look_at_vector(store, key, layout, kind, codec, into)
    if seen is not None:
        return seen.header
    with _errors_of(key):
        body = codec.body_for(into)
        running = RunningChecksum(body)
        header = Header.unpack(store.read(key, body, running))
        check_header(header, layout, kind)
        check_encoding(header, codec)
        check_sum(header, running.whole())
        codec.decode(body, into)
    return header


def look_at_vector(
    store: Store, key: str, layout: Layout, kind: Kind, codec: Codec, into: Vector | None = None
) -> SeenVector | None:
    """As `fetch_vector`, but without a copy, or with one `into`; None if it must be read, or is encoded."""
    view = store.view(key, codec.body_bytes) if codec.is_exact or into is not None else None
    if view is None:
        return None
    with _errors_of(key, view.check):
        header, squares = Header.unpack(view.head[:HEADER_BYTES]), view.head[HEADER_BYTES:]
        check_header(header, layout, kind)
        check_encoding(header, codec)
        if not squares:
            check_sum(header, checksum(view.body))
        if into is not None:
            codec.decode(view.body, into)
            view.check()
    vector = np.frombuffer(view.body, np.float32) if into is None else into
    return SeenVector(header, vector, SQUARES.unpack(squares)[0] if squares else None, view.check)


@contextmanager
def _errors_of(key: str, check: Callable[[], None] = lambda: None) -> Iterator[None]:
    try:
        yield
    except PayloadError as error:
        check()
        text = str(error)
        raise PayloadError(text if key in text else f"{key}: {text}", error.fault) from None


def put_range_history(
    store: Store, run: str, layout: Layout, version: int, epoch: int, flat: Vector, updates: int
) -> None:
    """Write the history of a range beside its center of this version: its vectors, end to end. Raises `StoreError`."""
    body, own = as_bytes(flat), history_layout(layout, flat.size // layout.size)
    header = header_for(body, own, Kind.HISTORY, version=version, epoch=epoch, ticket=updates)
    store.write(keys.history(run, version), header.pack(), body)


def fetch_range_history(store: Store, run: str, layout: Layout, version: int, into: Vector) -> int:
    """Read a history of a range into `into`; returns the updates. Raises what `fetch_vector` raises."""
    key, own = keys.history(run, version), history_layout(layout, into.size // layout.size)
    header = fetch_vector(store, key, own, Kind.HISTORY, into)
    if header.version != version:
        raise PayloadError(f"{key} holds version {header.version}")
    return header.ticket


def put_state(store: Store, run: str, version: int, *parts: bytes | memoryview) -> None:
    """Write what the merge rule keeps of a range, in parts, beside its center of this version. Raises `StoreError`."""
    key, size = keys.rule_state(run, version), sum(map(len, parts))
    body, stop = store.place(key, size) or memoryview(bytearray(size)), 0
    for part in parts:
        start, stop = stop, stop + len(part)
        body[start:stop] = part
    head = _HISTORY_HEAD.pack(_STATE_MAGIC, 0, version, xxhash.xxh3_64_intdigest(body))
    store.write(key, head, body)


def fetch_state(store: Store, run: str, version: int) -> bytes:
    """Read it; empty if there is none. Raises `StoreError`; `PayloadError` if it is damaged."""
    try:
        return _read_checked(store, keys.rule_state(run, version), (_STATE_MAGIC, 0, version))
    except MissingKeyError:
        return b""


def put_history(
    store: Store,
    run: str,
    worker: int,
    version: int,
    history: bytes,
    *,
    expire_s: float | None = HISTORY_EXPIRY_S,
) -> None:
    """Write the history of slot `worker` at `version`; None keeps it until it is taken. Raises `StoreError`."""
    head = _HISTORY_HEAD.pack(_HISTORY_MAGIC, worker, version, xxhash.xxh3_64_intdigest(history))
    key = keys.state(run, worker, version)
    store.write(key, head, memoryview(history), expire_s=expire_s)


def take_history(store: Store, run: str, worker: int, version: int) -> bytes:
    """Read a history and remove it. Raises `MissingKeyError`, `StoreError`; `PayloadError` if it is damaged."""
    key = keys.state(run, worker, version)
    try:
        return _read_checked(store, key, (_HISTORY_MAGIC, worker, version))
    finally:
        store.delete(key)


def _read_checked(store: Store, key: str, expected: tuple[bytes, int, int]) -> bytes:
    """The body of a blob whose head has this magic, slot and version, and the body's checksum."""
    _, size = store.read_head(key)
    if size > MOST_HISTORY_BYTES:
        raise PayloadError(f"{key} has {size} bytes, more than any history")
    body = bytearray(size)
    head = store.read(key, memoryview(body))
    if len(head) != _HISTORY_HEAD.size:
        raise PayloadError(f"{key} is no solver history")
    if _HISTORY_HEAD.unpack(head) != (*expected, xxhash.xxh3_64_intdigest(body)):
        raise PayloadError(f"{key} is damaged, or of another vector")
    return bytes(body)
