"""A store in this process's memory, for tests and for the simulator, whose clock it can share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from speedo.errors import MissingKeyError, PayloadError
from speedo.storage.base import Arrived, View
from speedo.storage.keys import check_blob

Blob = tuple[bytes, bytes, float]  # head, body, and when it expires
_NEVER: Final = float("inf")
_FEW: Final = 1024


class MemoryStore:
    """Blobs in a dictionary, copied when written and when read.

    `clock` gives seconds and is read only for blobs that expire. An expired blob is invisible at once, and removed at
    the latest when the number of blobs has doubled.
    """

    is_one_memory: Final = False

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._blobs: dict[str, Blob] = {}
        self._sweep_at = _FEW

    @property
    def address(self) -> str:
        """The name of the store in messages."""
        return "this process's memory"

    def place(self, key: str, nbytes: int) -> memoryview | None:
        """See `Store.place`: there is no such memory here."""
        return None

    def write(
        self, key: str, head: bytes, body: memoryview, *, expire_s: float | None = None
    ) -> None:
        check_blob(key, head)
        end = _NEVER if expire_s is None else self._clock() + expire_s
        self._blobs[key] = bytes(head), body.tobytes(), end
        if len(self._blobs) > self._sweep_at:
            self._sweep()

    def read_head(self, key: str) -> tuple[bytes, int]:
        head, body = self._find(key)
        return head, len(body)

    def view(self, key: str, nbytes: int) -> View | None:
        """See `Store.view`: a blob must be read."""
        return None

    def read(self, key: str, into: memoryview, arrived: Arrived | None = None) -> bytes:
        head, body = self._find(key)
        if len(body) != len(into):
            raise PayloadError(f"{key} has a body of {len(body)} bytes, {len(into)} were expected")
        into[:] = body
        return head

    def delete(self, *keys: str) -> None:
        for key in keys:
            self._blobs.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        self._sweep()
        return sorted(key for key in self._blobs if key.startswith(prefix))

    def ping(self) -> None:
        return None

    def close(self) -> None:
        return None

    def _find(self, key: str) -> tuple[bytes, bytes]:
        try:
            head, body, end = self._blobs[key]
        except KeyError:
            raise MissingKeyError(f"{key} is not in {self.address}") from None
        if end is not _NEVER and end <= self._clock():
            self._blobs.pop(key, None)
            raise MissingKeyError(f"{key} is no longer in {self.address}: it has expired")
        return head, body

    def _sweep(self) -> None:
        now = self._clock()
        for key, (_, _, end) in list(self._blobs.items()):
            if end <= now:
                del self._blobs[key]
        self._sweep_at = 2 * len(self._blobs) + _FEW
