"""Two stores as one: shared memory for processes of one machine, Redis for the others.

A process on the master's machine writes into the near store alone, and into the far one when the near one is full. Only
a master that takes workers from other machines writes everything to both. What is not near is looked for far away.
"""

from __future__ import annotations

from speedo.errors import MissingKeyError, StoreUnavailableError
from speedo.storage.base import Arrived, Store, View
from speedo.storage.shared_memory.store import SharedMemoryStore


class TieredStore:
    """`near` and `far` as one store; a near store that is full is passed over. With `to_both` it writes to both.

    A blob that this store wrote into both is read from the far one, which may have lost it: its writer looks so
    whether all can read it.
    """

    def __init__(self, near: SharedMemoryStore, far: Store, *, to_both: bool = False) -> None:
        self._near, self._far, self._to_both = near, far, to_both
        self._in_both: set[str] = set()
        self.is_one_memory = not to_both

    def __repr__(self) -> str:
        return f"TieredStore({self._near!r}, {self._far!r})"

    @property
    def address(self) -> str:
        """The far store: it is the one that a person knows."""
        return self._far.address

    @property
    def outages(self) -> int:
        """How many outages of the far store have ended; 0 for one that does not count them."""
        return int(getattr(self._far, "outages", 0))

    def place(self, key: str, nbytes: int) -> memoryview | None:
        return self._near.place(key, nbytes)

    def write(
        self, key: str, head: bytes, body: memoryview, *, expire_s: float | None = None
    ) -> None:
        try:
            self._near.write(key, head, body, expire_s=expire_s)
        except StoreUnavailableError:
            self._near.remove(key)  # a former blob must not hide the new one
        else:
            if not self._to_both:
                return
            self._in_both.add(key)
        self._far.write(key, head, body, expire_s=expire_s)

    def read_head(self, key: str) -> tuple[bytes, int]:
        if key in self._in_both:
            return self._far.read_head(key)
        try:
            return self._near.read_head(key)
        except MissingKeyError:
            return self._far.read_head(key)

    def view(self, key: str, nbytes: int) -> View | None:
        if key in self._in_both:
            return None
        try:
            return self._near.view(key, nbytes)
        except MissingKeyError:
            return None

    def read(self, key: str, into: memoryview, arrived: Arrived | None = None) -> bytes:
        if key in self._in_both:
            return self._far.read(key, into, arrived)
        try:
            return self._near.read(key, into, arrived)
        except MissingKeyError:
            return self._far.read(key, into, arrived)

    def delete(self, *keys: str) -> None:
        far = [key for key in keys if not self._near.remove(key) or key in self._in_both]
        self._in_both.difference_update(keys)
        if far:
            self._far.delete(*far)

    def keys(self, prefix: str) -> list[str]:
        return sorted({*self._near.keys(prefix), *self._far.keys(prefix)})

    def ping(self) -> None:
        self._far.ping()

    def close(self) -> None:
        self._near.close()
        self._far.close()
