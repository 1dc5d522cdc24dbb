"""A store in this process's memory, for tests and for the simulator, whose clock it can share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from speedo.errors import MissingKeyError, PayloadError
from speedo.storage import keys
from speedo.storage.base import Arrived, View
from speedo.storage.conditional import Decide, Guard, Small, Smalls
from speedo.storage.keys import check_blob

_NEVER: Final = float("inf")
_FEW: Final = 1024


class MemoryStore:
    """Blobs in a dictionary, copied when written and when read.

    `clock` gives seconds and is read only for blobs that expire. An expired blob is invisible at once, and removed at
    the latest when the number of blobs has doubled. With a `guard` each write depends on the run's epoch.
    """

    is_one_memory: Final = False

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.guard: Guard | None = None
        self._blobs: dict[str, tuple[bytes, bytes, float]] = {}
        self._smalls: dict[str, tuple[bytes, float]] = {}
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
        """See `Store.write`."""
        check_blob(key, head)
        if self.guard is not None:
            self.guard.require(self._small(self.guard.names[0]))
            if self.guard.entry:
                self._smalls[keys.journal(self.guard.run)] = self.guard.entry, _NEVER
                self.guard.entry = b""
        end = _NEVER if expire_s is None else self._clock() + expire_s
        self._blobs[key] = (bytes(head), body.tobytes(), end)
        if len(self._blobs) > self._sweep_at:
            self._sweep()

    def read_head(self, key: str) -> tuple[bytes, int]:
        """See `Store.read_head`."""
        head, body = self._find(key)
        return head, len(body)

    def view(self, key: str, nbytes: int) -> View | None:
        """See `Store.view`: a blob must be read."""
        return None

    def read(self, key: str, into: memoryview, arrived: Arrived | None = None) -> bytes:
        """See `Store.read`."""
        head, body = self._find(key)
        if len(body) != len(into):
            raise PayloadError(f"{key} has a body of {len(body)} bytes, {len(into)} were expected")
        into[:] = body
        return head

    def delete(self, *keys: str) -> None:
        """See `Store.delete`."""
        for key in keys:
            self._blobs.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        """See `Store.keys`."""
        self._sweep()
        return sorted(key for key in self._blobs if key.startswith(prefix))

    def change(self, names: tuple[str, ...], decide: Decide) -> None:
        """See `Conditional.change`."""
        for name, small in decide(self.smalls(names)).items():
            self._smalls.pop(name, None)
            if small is not None:
                end = _NEVER if small.left_s == _NEVER else self._clock() + small.left_s
                self._smalls[name] = small.data, end

    def smalls(self, names: tuple[str, ...]) -> Smalls:
        """The small values under these keys."""
        return {name: self._small(name) for name in names}

    def _small(self, name: str) -> Small | None:
        data, end = self._smalls.get(name, (b"", 0.0))
        if end == _NEVER:
            return Small(data)
        left_s = end - self._clock() if name in self._smalls else 0.0
        return Small(data, left_s) if left_s > 0 else None

    def ping(self) -> None:
        """See `Store.ping`."""
        return None

    def close(self) -> None:
        """See `Store.close`."""
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
