"""The collectives of hosts: one process of each, its leader, calls them; they go through the run's store.

Each leader writes what it brings to its call `n` under a key of its own, with the call's words before it, then reads
that of the others. Once all have brought something to a call, nobody reads the call before it any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import numpy as np

from speedo.errors import ConfigError, MissingKeyError, PayloadError, StoreError, TeamBrokenError
from speedo.exchange.collective import REGROUP, SAME_CALLS, Array
from speedo.storage import keys
from speedo.storage.base import Store
from speedo.storage.keys import MAX_HEAD_BYTES

LEAST_PAUSE_S: Final = 2e-4
MOST_PAUSE_S: Final = 5e-3
LOOK_EVERY_S: Final = 0.5  # for members that are gone
KEPT: Final = 2.0  # times the patience; nobody waits longer for what was brought
CALLED: Final = b"call "
BROKEN: Final = (
    b"broken "  # a host that sends this takes part no more: its members are gone, or it has left
)
DIFFERS: Final = b"differs "  # the same, because its members call different things
NOTHING: Final = memoryview(b"\0")


class HostExchange:
    """The side of the leader `leaders[own]`, for one thread.

    `gone` says which member is gone, as a sentence; empty while all are there. `run` is the keyspace of the store,
    which is closed with this. `among` names the members whose hosts they are: nobody else's calls have its keys.

    A leader that `asks` says with its next call that all are to form a new group; after that all know, by `regroups`.

    All leaders make the same calls in the same order, with the same words for each. They raise `TeamBrokenError` if one
    of them does not come or the store fails, and `ConfigError` if one calls something else.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        among: str,
        leaders: Sequence[int],
        own: int,
        patience_s: float,
        gone: Callable[[], str],
    ) -> None:
        self.asks = self.regroups = False
        self._among = among
        self._store, self._run, self._leaders = store, run, leaders
        self.own, self.patience_s, self._gone = own, patience_s, gone
        self._said = self._heard = 0  # calls
        self._words = b""

    # ------------------------------------------------------------ the calls

    def barrier(self, call: str) -> None:
        """Return once all leaders have called it."""
        self._say(call)
        self._hear_others({})

    def all_reduce(self, call: str, flat: Array, combine: np.ufunc) -> None:
        """Combine the vectors of all hosts, in the order of the hosts, in `flat` itself."""
        self._say(call, bytes_of(flat))
        total, part = np.empty_like(flat), np.empty_like(flat)
        for host in range(len(self._leaders)):
            into = part if host else total
            if host == self.own:
                into[:] = flat
            else:
                self._hear(host, bytes_of(into))
            if host:
                combine(total, part, out=total)
        flat[:] = total
        self._heard_all()

    def all_gather(
        self, call: str, rows: Array, hosts: Sequence[Sequence[int]], out: Array
    ) -> None:
        """Fill `out` with all hosts' rows, each of which brings those that `hosts` says, in that order."""
        self._say(call, bytes_of(rows))
        theirs = {
            host: np.empty((len(ranks), *out.shape[1:]), rows.dtype)
            for host, ranks in enumerate(hosts)
            if host != self.own
        }
        self._hear_others({host: bytes_of(one) for host, one in theirs.items()})
        for host, ranks in enumerate(hosts):
            found = rows if host == self.own else theirs[host]
            out[list(ranks)] = found.reshape(len(ranks), *out.shape[1:])

    def broadcast(self, call: str, flat: Array, root: int) -> None:
        """Fill `flat` with that of the host `root`."""
        body = bytes_of(flat)
        self._say(call, body if self.own == root else NOTHING)
        self._hear_others({} if self.own == root else {root: body})

    # ------------------------------------------------------------ how they run

    def _say(self, call: str, body: memoryview = NOTHING) -> None:
        """Bring `body` to the next call, named so."""
        self._words = (CALLED + call.encode())[: MAX_HEAD_BYTES - len(REGROUP)]
        self.regroups = self.asks
        with _store_fails():
            self._write(self._words + (REGROUP if self.asks else b""), body)

    def _hear_others(self, into: Mapping[int, memoryview]) -> None:
        """Wait for all other hosts; what those in `into` have brought goes there."""
        for host in range(len(self._leaders)):
            if host != self.own:
                self._hear(host, into.get(host))
        self._heard_all()

    def _hear(self, host: int, into: memoryview | None) -> None:
        """Wait until this host has brought its part, and fill `into` with it."""
        key = self._key(host, self._said)
        with _store_fails():
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
            with _store_fails():
                self._store.read(key, into)

    def _heard_all(self) -> None:
        """All have brought their parts to this call: what was brought to the one before is not read any more."""
        if self._heard:
            with _store_fails():
                self._store.delete(self._key(self.own, self._heard))
        self._heard = self._said

    # ------------------------------------------------------------ the end

    def close(self, why: str, *, differs: bool = False) -> None:
        """Leave; the others hear why at their next call. May be called twice."""
        with suppress(StoreError):
            self._write(
                (DIFFERS if differs else BROKEN) + why.encode()[: MAX_HEAD_BYTES // 2], NOTHING
            )
        self._store.close()

    def _write(self, words: bytes, body: memoryview) -> None:
        self._said += 1
        expire_s = KEPT * self.patience_s  # what a leader that died has brought
        self._store.write(self._key(self.own, self._said), words, body, expire_s=expire_s)

    def _key(self, host: int, call: int) -> str:
        return keys.collective(self._run, self._leaders[host], self._among, call)

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
            if now - began > self.patience_s:
                raise TeamBrokenError(
                    f"worker {self._leaders[host]} does not come within {self.patience_s:g} s"
                )
            time.sleep(pause)
            pause = min(1.5 * pause, MOST_PAUSE_S)


@contextmanager
def _store_fails() -> Iterator[None]:
    """The store's troubles, too, are the end of an exchange."""
    try:
        yield
    except (StoreError, PayloadError) as error:
        raise TeamBrokenError(str(error)) from error


def bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    """The memory of a contiguous array; one byte of nothing for an empty one."""
    return memoryview(array.data).cast("B") if array.nbytes else memoryview(bytearray(1))
