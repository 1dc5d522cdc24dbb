"""What the hosts of a run give one another in a collective: one process of each, its leader, through the run's store.

Each leader writes what it brings to its call `n` under a key of its own, with the call's words before it, then reads
that of the others. Once all have brought something to a call, nobody reads the call before it any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from speedo.errors import ConfigError, MissingKeyError, StoreError, TeamBrokenError
from speedo.storage import keys
from speedo.storage.base import MAX_HEAD_BYTES, Store
from speedo.transport.collective import REGROUP, SAME_CALLS

LEAST_PAUSE_S: Final = 2e-4
MOST_PAUSE_S: Final = 5e-3
LOOK_EVERY_S: Final = 0.5  # for members that are gone
CALLED: Final = b"call "
BROKEN: Final = (
    b"broken "  # whoever says so takes part no more: its members are gone, or it has left
)
DIFFERS: Final = b"differs "  # the same, because its members call different things
NOTHING: Final = memoryview(b"\0")


class HostExchange:
    """The side of the leader `leaders[own]`, for one thread.

    `gone` says which member is gone, as a sentence; empty while all are there. `run` is the keyspace of the store,
    which is closed with this. `first` is added to the numbers of the calls, which are those of the keys.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        leaders: Sequence[int],
        own: int,
        patience_s: float,
        gone: Callable[[], str],
        first: int = 0,
    ) -> None:
        self.regroups = False  # a leader has said so with the last call
        self._store, self._run, self._leaders = store, run, leaders
        self.own, self._patience_s, self._gone = own, patience_s, gone
        self._said = self._heard = self._first = first  # calls
        self._words = b""

    @property
    def hosts(self) -> int:
        """How many there are."""
        return len(self._leaders)

    def say(self, call: str, body: memoryview = NOTHING, *, asks: bool = False) -> None:
        """Bring `body` to the next call, named so; this leader `asks` all to form a new group after it."""
        self._words = (CALLED + call.encode())[: MAX_HEAD_BYTES - len(REGROUP)]
        self.regroups = asks
        self._write(self._words + (REGROUP if asks else b""), body)

    def hear(self, host: int, into: memoryview | None = None) -> None:
        """Wait until this host has brought its part, and fill `into` with it.

        Raises `TeamBrokenError` if it does not come, `ConfigError` if it calls something else.
        """
        key = keys.collective(self._run, self._leaders[host], self._said)
        words = self._awaited(host, key)
        if words.startswith(DIFFERS):
            raise ConfigError(words.removeprefix(DIFFERS).decode(errors="replace"))
        if words.startswith(BROKEN):
            raise TeamBrokenError(words.removeprefix(BROKEN).decode(errors="replace"))
        self.regroups |= words.endswith(REGROUP)
        words = words.removesuffix(REGROUP)
        if words != self._words:
            first, theirs = (
                one.removeprefix(CALLED).decode(errors="replace") for one in (self._words, words)
            )
            raise ConfigError(
                f"worker {self._leaders[host]} calls {theirs}, worker {self._leaders[self.own]} calls {first}: "
                f"{SAME_CALLS}"
            )
        if into is not None:
            self._store.read(key, into)

    def heard_all(self) -> None:
        """All have brought their parts to this call: what was brought to the one before is not read any more."""
        if self._heard > self._first:
            self._store.delete(keys.collective(self._run, self._leaders[self.own], self._heard))
        self._heard = self._said

    def close(self, why: str, *, differs: bool = False) -> None:
        """Leave; the others hear why at their next call. May be called twice."""
        with suppress(StoreError):
            self._write(
                (DIFFERS if differs else BROKEN) + why.encode()[: MAX_HEAD_BYTES // 2], NOTHING
            )
        self._store.close()

    def _write(self, words: bytes, body: memoryview) -> None:
        self._said += 1
        self._store.write(
            keys.collective(self._run, self._leaders[self.own], self._said), words, body
        )

    def _awaited(self, host: int, key: str) -> bytes:
        began = looked = time.monotonic()
        pause = LEAST_PAUSE_S
        while True:
            with suppress(MissingKeyError):
                return self._store.read_head(key)[0]
            now = time.monotonic()
            if now - looked > LOOK_EVERY_S:
                looked = now
                if gone := self._gone():
                    raise TeamBrokenError(gone)
            if now - began > self._patience_s:
                raise TeamBrokenError(
                    f"worker {self._leaders[host]} does not come within {self._patience_s:g} s"
                )
            time.sleep(pause)
            pause = min(1.5 * pause, MOST_PAUSE_S)
