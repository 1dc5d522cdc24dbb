"""Collectives of workers on several hosts: within each host over shared memory, between the hosts by their leaders.

Each step of a call is the same arithmetic, in the same order, wherever it is done: a host's sum is by rank, the sum of
the hosts around their ring, from a host that follows from the place in the array. So all have the same result to the
bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from speedo.errors import ConfigError, SpeedoError, TeamBrokenError
from speedo.exchange.collective import OPERATIONS, Array, Collective, require_collective
from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.host_ring import GRACE, limit_s

WORDS: Final = 512  # bytes in which a leader tells its host how a call between hosts went
TEXT_AT: Final = 8  # after what it is, and whether all are to form a new group
_FINE, _DIFFERS, _BROKEN = range(3)


class SpreadCollective:
    """Member `rank` of all those in `hosts`, the ranks on each host, sorted, the host of the lowest first.

    `exchange` makes the way to the other hosts, from the number of this one; only leaders call it. All calls raise as
    those of `Collective`.
    """

    def __init__(
        self,
        folder: Path | None,
        rank: int,
        hosts: Sequence[Sequence[int]],
        exchange: Callable[[int], HostExchange],
        *,
        patience_s: float,
        names: Sequence[int] = (),
        gone: Callable[[], str] = str,
    ) -> None:
        """`folder` is private, in memory, and that of all members of this host; one that is alone needs none.

        `names` are what errors call the workers of these ranks, if not by their ranks. `gone` as of `Collective`.
        """
        self.asks = self.regroups = False
        self._names, self._patience_s = names or range(sum(map(len, hosts))), patience_s
        self._hosts, self.rank, self.size = hosts, rank, sum(map(len, hosts))
        self._own = next(at for at, ranks in enumerate(hosts) if rank in ranks)
        mine = hosts[self._own]
        self._exchange = exchange(self._own) if rank == mine[0] else None
        self._local = None
        if len(mine) > 1:
            assert folder is not None
            try:
                self._local = Collective(
                    folder,
                    mine.index(rank),
                    len(mine),
                    patience_s=patience_s,
                    names=[self._names[one] for one in mine],
                    gone=gone,
                )
            except BaseException as error:
                if self._exchange is not None:
                    self._exchange.close(str(error))
                raise
        self._broken = ""

    def close(self) -> None:
        """Leave; workers that wait for this one raise `TeamBrokenError`. May be called twice."""
        self._break(f"worker {self._names[self.rank]} has left the collective")

    @property
    def is_broken(self) -> bool:
        """Whether it is of no more use."""
        return bool(self._broken)

    # ------------------------------------------------------------ the calls

    def barrier(self) -> None:
        """Return once all members have called it."""

        def within(local: Collective) -> None:
            local.barrier()

        self._run("barrier", 0, within, HostExchange.barrier)

    def all_reduce(self, array: Array, op: str = "sum") -> Array:
        """The `sum`, `mean` or `max` of all members' arrays, in `array` itself; `mean` divides the sum."""
        dtype = require_collective(array, op)
        flat = np.ascontiguousarray(array).reshape(-1)

        def within(local: Collective) -> None:
            local.all_reduce(flat, "max" if op == "max" else "sum")

        def between(exchange: HostExchange, call: str) -> None:
            exchange.all_reduce(call, flat, OPERATIONS[op])
            if op == "mean":
                np.divide(flat, self.size, out=flat)

        def after(local: Collective) -> None:
            local.broadcast(flat)

        call = f"all_reduce {op} of {dtype} {array.shape}"
        self._run(call, 2 * flat.nbytes, within, between, after)
        if not np.may_share_memory(flat, array):
            array[...] = flat.reshape(array.shape)
        return array

    def all_gather(self, array: Array) -> Array:
        """All members' arrays, by rank: new, of shape `(size, *array.shape)`."""
        dtype = require_collective(array)
        whole = np.empty((self.size, *array.shape), dtype)
        rows = np.ascontiguousarray(array)[None]

        def within(local: Collective) -> None:
            nonlocal rows
            rows = local.all_gather(array)

        def between(exchange: HostExchange, call: str) -> None:
            exchange.all_gather(call, rows, self._hosts, whole)

        def after(local: Collective) -> None:
            local.broadcast(whole)

        self._run(f"all_gather of {dtype} {array.shape}", whole.nbytes, within, between, after)
        return whole

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Fill `array` with that of member `root`."""
        dtype = require_collective(array)
        if not 0 <= root < self.size:
            raise ConfigError(f"root is {root}: use 0 to {self.size - 1}")
        roots = next(at for at, ranks in enumerate(self._hosts) if root in ranks)
        flat = np.ascontiguousarray(array).reshape(-1)

        def within(local: Collective) -> None:
            at = self._hosts[self._own].index(root) if roots == self._own else 0
            local.broadcast(flat, at)

        def between(exchange: HostExchange, call: str) -> None:
            exchange.broadcast(call, flat, roots)

        def after(local: Collective) -> None:
            local.broadcast(flat)

        call = f"broadcast from worker {root} of {dtype} {array.shape}"
        self._run(call, flat.nbytes, within, between, after)
        if not np.may_share_memory(flat, array):
            array[...] = flat.reshape(array.shape)
        return array

    # ------------------------------------------------------------ how they run

    def _run(
        self,
        call: str,
        nbytes: int,
        within: Callable[[Collective], None],
        between: Callable[[HostExchange, str], None],
        after: Callable[[Collective], None] | None = None,
    ) -> None:
        """What the host makes, what its leader makes of it with the others, and how the host gets that.

        The host waits for its leader for as long as a link may take for so many bytes.
        """
        if self._broken:
            raise TeamBrokenError(f"no {call} in this collective any more: {self._broken}")
        try:
            if self._local is not None:
                within(self._local)
            problem: SpeedoError | None = None
            if self._exchange is not None:
                self._exchange.asks = self.asks
                try:
                    between(self._exchange, call)
                except SpeedoError as error:
                    problem = error
                self.regroups = self._exchange.regroups
            if self._local is not None:
                self._local.wait_for(self._patience_s + GRACE * limit_s(self._patience_s, nbytes))
                self._tell(self._local, problem)
                self._local.wait_for(self._patience_s)
            elif problem is not None:
                raise problem
            if self._local is not None and after is not None:
                after(self._local)
        except BaseException as error:
            self._break(str(error) or type(error).__name__, differs=isinstance(error, ConfigError))
            raise

    def _tell(self, local: Collective, problem: SpeedoError | None) -> None:
        """The host hears from its leader how the call between hosts went. Raises what it says."""
        said = np.zeros(WORDS // 4, np.int32)
        if problem is not None:
            text = str(problem).encode()[: WORDS - TEXT_AT]
            said[0] = _DIFFERS if isinstance(problem, ConfigError) else _BROKEN
            said.view(np.uint8)[TEXT_AT : TEXT_AT + len(text)] = np.frombuffer(text, np.uint8)
        said[1] = self.regroups
        local.broadcast(said)
        self.regroups = bool(said[1])
        if said[0] != _FINE:
            text = said.view(np.uint8)[TEXT_AT:].tobytes().rstrip(b"\0")
            kind = ConfigError if said[0] == _DIFFERS else TeamBrokenError
            raise kind(text.decode(errors="replace"))

    def _break(self, why: str, *, differs: bool = False) -> None:
        self._broken = self._broken or why
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close(why, differs=differs)
        if self._local is not None:
            self._local.close()
