"""The collectives of hosts: one process of each, its leader, calls them; the leaders are a ring of open sockets.

`speedo.exchange.host_links` connects them, `speedo.exchange.host_ring` puts a call through.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from speedo.errors import ConfigError, TeamBrokenError
from speedo.exchange.collective import Array
from speedo.exchange.host_links import HostLinks, Rendezvous
from speedo.exchange.host_ring import LOOK_EVERY_S, Call, HostRing


class HostExchange:
    """The side of the leader `leaders[own]`, for one thread.

    `gone` says which member is gone, as a sentence; empty while all are there. The store of `at` is closed with this.

    A leader that `asks` says with its next call that all are to form a new group; after that all know, by `regroups`.

    All leaders make the same calls in the same order, with the same words for each; the first call connects them. They
    raise `TeamBrokenError` if one of them does not come or the store fails, and `ConfigError` if one calls something
    else. A call may take the patience, and its bytes' time at 4 MB/s. Arrays are contiguous.
    """

    def __init__(
        self,
        at: Rendezvous,
        leaders: Sequence[int],
        own: int,
        patience_s: float,
        gone: Callable[[], str],
    ) -> None:
        self.asks = self.regroups = False
        self.own, self._leaders, self._patience_s, self._gone = own, leaders, patience_s, gone
        self._links = HostLinks(at, leaders, own, patience_s, gone)
        self._ring: HostRing | None = None
        self._reduction: HostReduction | None = None
        self._why = ""

    def wait_for(self, patience_s: float) -> None:
        """Let calls take so long from now on."""
        self._patience_s = patience_s
        if self._ring is not None:
            self._ring.patience_s = patience_s

    # ------------------------------------------------------------ the calls

    def barrier(self, call: str) -> None:
        """Return once all leaders have called it."""
        self._run(self._call(call))

    def all_reduce(self, call: str, flat: Array, combine: np.ufunc) -> None:
        """Combine the vectors of all hosts in `flat` itself."""
        one = self._call(call, flat, combine)
        one.ready.append((0, flat.size))
        self._run(one)

    def begin_all_reduce(self, call: str, flat: Array) -> HostReduction:
        """Sum the vectors of all hosts in `flat` itself while parts become ready; no other call before its end."""
        ring, one = self._connected(), self._call(call, flat, np.add)
        self._reduction = HostReduction(ring, one, self._gone, self._reduced)
        return self._reduction

    def all_gather(
        self, call: str, rows: Array, hosts: Sequence[Sequence[int]], out: Array
    ) -> None:
        """Fill `out` with all hosts' rows, each of which brings those that `hosts` says, in that order."""
        found = [np.empty((len(ranks), *out.shape[1:]), out.dtype) for ranks in hosts]
        found[self.own][:] = rows.reshape(found[self.own].shape)
        self._run(self._call(call, rows=found))
        for ranks, one in zip(hosts, found, strict=True):
            out[list(ranks)] = one

    def broadcast(self, call: str, flat: Array, root: int) -> None:
        """Fill `flat` with that of the host `root`."""
        one = self._call(call, flat, root=root)
        if self.own == root:
            one.ready.append((0, flat.size))
        self._run(one)

    # ------------------------------------------------------------ how they run

    def _call(self, words: str, *what: Any, **more: Any) -> Call:
        return Call(words, self.asks, self.own, len(self._leaders), *what, **more)

    def _connected(self) -> HostRing:
        if self._why:
            raise TeamBrokenError(self._why)
        if self._ring is None:
            try:
                ends = self._links.connect()
            except BaseException as error:
                self._break(error)
                raise
            self._ring = HostRing(self._links, *ends, self._leaders, self._patience_s)
        return self._ring

    def _run(self, call: Call) -> None:
        ring = self._connected()
        try:
            ring.put_through(call, self._gone)
        except BaseException as error:
            self._break(error)
            raise
        self.regroups = call.regroups

    def _reduced(self, call: Call, error: BaseException | None) -> None:
        self._reduction, self.regroups = None, call.regroups
        if error is not None:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        """The others hear at once that a call has failed."""
        self.close(str(error) or type(error).__name__, differs=isinstance(error, ConfigError))

    def close(self, why: str, *, differs: bool = False) -> None:
        """Leave; the others hear why at their next call. May be called twice: the first words count."""
        if self._why:
            return
        self._why = why
        if self._reduction is not None:
            self._reduction.stop(TeamBrokenError(why))
        self._links.close(why, differs=differs)


class HostReduction:
    """A sum over hosts under way, in a thread beside that of the caller. To be finished, or its exchange closed."""

    def __init__(
        self,
        ring: HostRing,
        call: Call,
        gone: Callable[[], str],
        ended: Callable[[Call, BaseException | None], None],
    ) -> None:
        self._ring, self._call, self._gone, self._ended = ring, call, gone, ended
        self._error: BaseException | None = None
        self._changed = call.changed = threading.Condition()
        self._alarm = call.alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_over = False
        threading.Thread(target=self._work, name="ring", daemon=True).start()

    def __del__(self) -> None:
        os.close(self._alarm)

    def ready(self, start: int, stop: int) -> None:
        """Values `start` to `stop` are final on this host. Each once, in any order, from any thread."""
        self._call.ready.append((start, stop))
        os.eventfd_write(self._alarm, 1)

    def wait(self, start: int, stop: int) -> None:
        """Return once the sum of these values is there. Raises as the calls of `HostExchange`."""
        done, pieces = self._call.done, self._call.pieces_of(start, stop)
        self._until(lambda: all(done[one] for one in pieces))

    def finish(self) -> None:
        """Return once the sum of all values is there."""
        self._until(lambda: self._is_over)
        self._ended(self._call, None)

    def stop(self, error: BaseException) -> None:
        """Give it up, for this reason."""
        self._call.problem = error
        os.eventfd_write(self._alarm, 1)
        with self._changed:
            while not self._is_over:
                self._changed.wait(LOOK_EVERY_S)

    def _until(self, there: Callable[[], bool]) -> None:
        while True:
            changed = True
            with self._changed:
                if not (self._is_over or there()):
                    changed = self._changed.wait(LOOK_EVERY_S)
            if self._error is not None:
                self._ended(self._call, self._error)
                raise self._error
            if there():
                return
            if not changed and (why := self._gone()):
                self.stop(TeamBrokenError(why))

    def _work(self) -> None:
        try:
            self._ring.put_through(self._call, str)
        except BaseException as error:  # raised where it is waited for
            self._error = error
        with suppress(RuntimeError), self._changed:
            self._is_over = True
            self._changed.notify_all()
