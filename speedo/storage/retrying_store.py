"""A store that retries: calls that fail for a passing reason are repeated until they work.

Every call of a `Store` may be repeated, because a write replaces its blob as a whole. A call that timed
out may still be executed later, so a key should be written with one content only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from speedo.errors import Meaning, SpeedoError, StoreCrowdedError
from speedo.storage.base import Arrived, Store, View
from speedo.storage.meaning import ANSWERS, meaning_of

Result = TypeVar("Result")
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
# `LoginWatch` makes room twenty times a second, and others take it as fast.
CROWDED_PAUSE_S: Final = 0.03


def noting(note: Callable[[str], None]) -> Callable[[str | None], None]:
    """An `on_trouble` that says by `note` what a call waits for, and that it waits no longer."""
    return lambda problem: note("the store is back" if problem is None else f"waiting: {problem}")


class Patience:
    """Repeats calls that failed and may succeed later (`Meaning.AGAIN`), after pauses of 0.1 s doubling to 2 s.

    If the server only has no room for one more connection, the pauses are 0.03 s. A call is given up `patience_s`
    seconds after its first failure; its last try may end later, by the store's own deadline. Once a call has worked, or
    if it `has_worked` before, a refusal counts as a passing problem, too: a restarted server gets its users again
    later. `on_trouble` is called with the problem when an outage begins, once more if it turns out that the server has
    no room for it, and with None when a call works again; `outages` counts those that ended.
    """

    def __init__(
        self,
        patience_s: float,
        *,
        on_trouble: Callable[[str | None], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        has_worked: bool = False,
    ) -> None:
        self.outages = 0
        self._patience_s, self._has_worked = patience_s, has_worked
        self._on_trouble, self._clock, self._sleep = on_trouble, clock, sleep
        self._in_trouble = self._is_crowded = False

    def call(self, what: Callable[[], Result]) -> Result:
        """What `what` returns, once it works; raises its last error, with the time waited."""
        began: float | None = None
        pause = FIRST_PAUSE_S
        while True:
            try:
                result = what()
            except SpeedoError as error:
                if isinstance(error, ANSWERS):
                    self._works()
                meaning = meaning_of(error, has_worked=self._has_worked)
                if meaning is not Meaning.AGAIN or not self._patience_s:
                    raise
                self._fails(error)
                now = self._clock()
                began = now if began is None else began
                left = began + self._patience_s - now
                if left <= 0:
                    raise _given_up(error, now - began) from error
                if isinstance(error, StoreCrowdedError):
                    self._sleep(min(CROWDED_PAUSE_S, left))
                    continue
                self._sleep(min(pause, left))
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                self._works()
                return result

    def _fails(self, error: SpeedoError) -> None:
        crowded = isinstance(error, StoreCrowdedError)
        if not self._in_trouble or (crowded and not self._is_crowded):
            self._in_trouble, self._is_crowded = True, crowded
            self._on_trouble(str(error))

    def _works(self) -> None:
        self._has_worked = True
        if self._in_trouble:
            self._in_trouble = self._is_crowded = False
            self.outages += 1
            self._on_trouble(None)


class RetryingStore:
    """A store that repeats failed calls; see `Patience` for the options and `outages`."""

    def __init__(
        self,
        store: Store,
        *,
        patience_s: float,
        on_trouble: Callable[[str | None], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        has_worked: bool = False,
    ) -> None:
        self._store, self.is_one_memory = store, store.is_one_memory
        self._patience = Patience(
            patience_s, on_trouble=on_trouble, clock=clock, sleep=sleep, has_worked=has_worked
        )

    def __repr__(self) -> str:
        return f"RetryingStore({self._store!r})"

    @property
    def outages(self) -> int:
        """How many outages of this store have ended."""
        return self._patience.outages

    @property
    def address(self) -> str:
        return self._store.address

    def place(self, key: str, nbytes: int) -> memoryview | None:
        return self._store.place(key, nbytes)

    def write(
        self, key: str, head: bytes, body: memoryview, *, expire_s: float | None = None
    ) -> None:
        self._patience.call(lambda: self._store.write(key, head, body, expire_s=expire_s))

    def read_head(self, key: str) -> tuple[bytes, int]:
        return self._patience.call(lambda: self._store.read_head(key))

    def view(self, key: str, nbytes: int) -> View | None:
        return self._patience.call(lambda: self._store.view(key, nbytes))

    def read(self, key: str, into: memoryview, arrived: Arrived | None = None) -> bytes:
        return self._patience.call(lambda: self._store.read(key, into, arrived))

    def delete(self, *keys: str) -> None:
        self._patience.call(lambda: self._store.delete(*keys))

    def keys(self, prefix: str) -> list[str]:
        return self._patience.call(lambda: self._store.keys(prefix))

    def ping(self) -> None:
        self._patience.call(self._store.ping)

    def close(self) -> None:
        self._store.close()


def _given_up(error: SpeedoError, waited_s: float) -> SpeedoError:
    return type(error)(f"{error}; it did not recover in {waited_s:.1f} s")
