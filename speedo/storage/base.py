"""The interface of a store: bytes under keys, each written once and completely.

A blob is a short head and a long body. A reader sees both or nothing: an unfinished write is
invisible, and so is one whose parts have expired. Every call ends within the store's deadline or
raises `StoreTimeoutError`. Keys come from `speedo.storage.keys` alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from speedo.storage import keys

Arrived = Callable[[int], None]
"""Gets how many bytes, from the first, are in place; 0 where reading begins, perhaps again."""


@dataclass(frozen=True, slots=True)
class View:
    """A blob in shared memory: `body` is read-only, and valid until the blob is deleted.

    `check` raises `MissingKeyError` if it was deleted meanwhile: what was read before may be of another blob.
    """

    head: bytes
    body: memoryview
    check: Callable[[], None]


def address_of(memory: memoryview) -> int:
    """The address of these bytes in memory."""
    if memory.readonly or not len(memory):
        return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Store(Protocol):
    """Bytes under keys; safe for use by one thread at a time, one instance per process."""

    @property
    def address(self) -> str:
        """The server's address for messages, without its password."""
        ...

    @property
    def is_one_memory(self) -> bool:
        """Whether a body made in its memory (`place`) is only looked at there, by processes of this machine."""
        ...

    def place(self, key: str, nbytes: int) -> memoryview | None:
        """Memory for the body of a blob, to be written under this key or one that differs in the last number; or None.

        A body in this memory is passed to `write` without a copy; until then each call for such a key returns the same
        memory. Then it is only to be read. A key is placed by one process at most.
        """
        ...

    def write(
        self, key: str, head: bytes, body: memoryview, *, expire_s: float | None = None
    ) -> None:
        """Write a blob, visible once it is complete; `expire_s` removes it after that time.

        `body` is contiguous bytes (format "B"). Overwriting a key replaces the blob as a whole.
        Raises `PayloadError` for a head above `keys.MAX_HEAD_BYTES`, `StoreError` for the rest; the key
        then holds the former blob, the new one or nothing, but never a part.
        """
        ...

    def read_head(self, key: str) -> tuple[bytes, int]:
        """The head of a blob and the length of its body in bytes.

        Raises `MissingKeyError`, `StoreError`.
        """
        ...

    def view(self, key: str, nbytes: int) -> View | None:
        """View a blob whose body has `nbytes` bytes without copying it; None if it must be `read`.

        Raises what `read` raises.
        """
        ...

    def read(self, key: str, into: memoryview, arrived: Arrived | None = None) -> bytes:
        """Fill `into` (writable, exactly the body's length) and return the head that belongs to it.

        A store that receives the body in parts calls `arrived` for each, so that the reader can process it meanwhile;
        other stores need not.

        Raises `MissingKeyError` if there is no complete blob (also if it is replaced or deleted
        while it is being read: `into` may then be partly filled), `PayloadError` if the body's
        length is not that of `into` (nothing is written then), `StoreError` for the rest.
        """
        ...

    def delete(self, *keys: str) -> None:
        """Remove blobs; a key that holds nothing is no error."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`, sorted; for clean-up and inspection only."""
        ...

    def ping(self) -> None:
        """Return if the server answers; raises `StoreError` otherwise."""
        ...

    def close(self) -> None:
        """Close the connection, which a later call opens again; may be called twice."""
        ...


def remove_run(store: Store, run: str, epoch: int) -> None:
    """Remove the keys of a run whose master of this epoch ends, and of those before it, which are fenced.

    Never those of a later epoch: its master may have taken the run over at this very moment.
    """
    found = store.keys(keys.prefix(run))
    store.delete(*(key for key in found if 0 <= keys.epoch_of(run, key) <= epoch))
