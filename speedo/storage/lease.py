"""Which master has a run that another machine may take over: a lease, and an epoch above all before, in its Redis.

Two masters are impossible by the epoch alone. Whoever takes the run over raises it first, and each write of a master
into the run's Redis is carried out only if the epoch is still its own (`speedo.storage.conditional`). So a master that
was stopped or cut off for however long can publish nothing. Clocks decide only when a standby may raise the epoch: the
lease is a key that expires by Redis's clock, and whose holder renews it.

One case remains in which time matters: a Redis that was restarted, and has lost epoch and lease. A standby never takes
over then. The holder writes both again, but where there is a standby only within the time of the lease since it last
renewed it, by its own clock: nobody can have taken it over by then.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from speedo.errors import FencedError, StoreError
from speedo.storage import keys
from speedo.storage.conditional import FORMER, Conditional, Guard, Small, Smalls, Term, look_at
from speedo.storage.retrying_store import Patience

LEASE_S: Final = 5.0
"""How long a lease lasts unless it is renewed. A shorter one is lost in a pause of a machine that swaps, or while Redis
loads its data; each second is one that a run stands still for when its machine is gone."""
RENEW_S: Final = 1.0
"""How often it is renewed: three tries that fail, with their timeouts, cost no lease."""
CALL_S: Final = 1.0
"""The timeout of the store of a lease."""
OVER_S: Final = 86_400.0
"""For so long the end of a run can be read: a standby that was cut off for less finds it."""


def _running_clock() -> float:
    """Seconds, also those in which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The master of a run: its epoch, -1 if there was none yet, and for how long its lease lasts unless it renews it.

    `address` is what it said of itself; it is empty once the lease has expired.
    """

    epoch: int
    left_s: float = 0.0
    address: str = ""
    is_over: bool = False

    @property
    def is_expired(self) -> bool:
        """Whether another one may take the run over."""
        return self.left_s <= 0 and not self.is_over


class MasterLease:
    """The lease of a run; `address` is what others read of its holder. Threads must not share one.

    `store` must have a short timeout (`CALL_S`): it is for `renew`, which is soon due again. `claim` and `end` decide
    over the run. They are repeated with `patience`, by the `patient` store, which may have a longer timeout. All calls
    raise `StoreError` if Redis cannot be reached. While `has_standby` is set, a lease that Redis has lost is not
    written again after its time.
    """

    def __init__(
        self,
        store: Conditional,
        run: str,
        address: str = "",
        *,
        patient: Conditional | None = None,
        patience: Patience | None = None,
        clock: Callable[[], float] = _running_clock,
        token: str = "",
    ) -> None:
        self._store, self._run, self._clock = store, run, clock
        self._patient, self._patience = patient or store, patience or Patience(0.0)
        self._address = address.encode()
        self._token = (token or secrets.token_hex(8)).encode()
        self._names = keys.epoch(run), keys.lease(run)
        self._sure_until = 0.0
        self.epoch: int | None = None
        self.has_standby = False
        self.in_doubt = False  # whether a claim that was sent may still be carried out

    def claim(self, after: int | None = None, *, ours: bool = False, least: int = 0) -> int:
        """Become the run's master: the new epoch, which is `least` or more.

        `after` is the epoch of the one that is followed: it must be the present one, and its lease have expired unless
        it is `ours`, which this command has ended for sure. Without it a run begins, or is resumed by a person: nobody
        may have a lease then. Raises `FencedError`.
        """
        claimed = 0

        def decide(found: Smalls) -> Smalls:
            nonlocal claimed
            term, lease = Term.of(found[self._names[0]]), found[self._names[1]]
            if (
                term is not None
                and term.token == self._token
                and not term.over
                and term.epoch != after
            ):
                claimed = term.epoch  # by a call whose answer was lost
                return {self._names[1]: self._lease(claimed)}
            if after is not None:
                self._require_claimable(term, after)
            if lease is not None and lease.left_s > 0 and not ours:
                raise FencedError(f"{self._told(term, lease)}")
            claimed = max(least, 0 if term is None else term.epoch + 1)
            return {
                self._names[0]: Small(Term(claimed, self._token).packed()),
                self._names[1]: self._lease(claimed),
            }

        self.in_doubt = True
        try:
            self._patience.call(lambda: self._change(self._patient, decide))
            self.epoch = claimed
        except FencedError:
            self.in_doubt = False
            raise
        self.in_doubt = False
        return claimed

    def renew(self) -> None:
        """Keep the lease; tries once. Raises `FencedError` if another one has the run, or that cannot be known."""
        self._change(self._store, self._renewed)

    def holder(self) -> LeaseHolder:
        """Who has the run; tries once."""
        found = look_at(self._patient, self._names)
        term, lease = Term.of(found[self._names[0]]), found[self._names[1]]
        if term is None:
            return LeaseHolder(-1)
        if lease is None or term.over:
            return LeaseHolder(term.epoch, is_over=term.over)
        return LeaseHolder(term.epoch, lease.left_s, _address_of(lease))

    def end(self, *, over: bool = True) -> None:
        """The run is over; or else only this master's part, and a standby may go on at once. Raises `FencedError`."""

        def decide(found: Smalls) -> Smalls:
            term = Term.of(found[self._names[0]])
            if term is not None and term.over and term.token == self._token:
                return {}  # by a call whose answer was lost
            self._kept(found)
            if not over:
                return {self._names[1]: None}
            ended = Term(self.epoch or 0, self._token, over=True)
            return {
                self._names[0]: Small(ended.packed(), OVER_S),
                self._names[1]: None,
                keys.journal(self._run): None,
            }

        if over:
            self._patience.call(lambda: self._patient.change(self._names, decide))
        else:  # it expires in any case
            self._store.change(self._names, decide)

    def _change(self, store: Conditional, decide: Callable[[Smalls], Smalls]) -> None:
        began = self._clock()
        store.change(self._names, decide)
        self._sure_until = began + LEASE_S

    def _lease(self, epoch: int) -> Small:
        return Small(b"%d %b" % (epoch, self._address), LEASE_S)

    def _require_claimable(self, term: Term | None, after: int) -> None:
        if term is None:
            raise FencedError(
                f"{self._store.address} has lost the lease of this run, as a Redis that was restarted has: a standby "
                "cannot know whether its master still trains, and does not take over"
            )
        if term.over:
            raise FencedError("the run is over: there is nothing to take over")
        if term.epoch != after:
            raise FencedError(
                f"another master has taken this run over (its epoch is {term.epoch}, that of the one to follow {after})"
            )

    def _renewed(self, found: Smalls) -> Smalls:
        kept = self._kept(found)
        return {**kept, self._names[1]: self._lease(self.epoch or 0)}

    def _kept(self, found: Smalls) -> Smalls:
        """What is to be written that this master may be the run's: nothing, or what Redis has lost."""
        assert self.epoch is not None
        term = Term.of(found[self._names[0]])
        if term is None or term.epoch < self.epoch:
            if self.has_standby and self._clock() >= self._sure_until:
                raise FencedError(
                    f"{self._store.address} has lost the epoch of this run, and this master's lease has run out: it is "
                    "not known which master has the run, so this one stops and writes nothing more"
                )
            own = Small(Term(self.epoch, self._token).packed())
            return {self._names[0]: own, self._names[1]: self._lease(self.epoch)}
        Guard(self._run, self.epoch).require(found[self._names[0]])
        return {}

    def _told(self, term: Term | None, lease: Small) -> str:
        epoch = "?" if term is None else term.epoch
        return (
            f"the run has a master, of epoch {epoch} at {_address_of(lease) or 'an unknown address'}, whose lease "
            f"lasts {lease.left_s:.0f} s more: end that one, or wait until it has expired"
        )


class MasterFence:
    """What the process of a run's master asks of the epoch; the lease itself is its command's.

    The `guard` is for its store. `has_standby` is set while a standby may take the run over. Threads may share it.
    """

    def __init__(
        self,
        store: Conditional,
        run: str,
        epoch: int,
        *,
        patience_s: float = LEASE_S,
        clock: Callable[[], float] = _running_clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._patience_s = store, patience_s
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self.guard = Guard(run, epoch)
        self.has_standby = False

    def require(self) -> None:
        """Raises `FencedError` if another one has the run.

        While there is no standby, Redis is waited for as long as a lease lasts, and then nobody else can have the run.
        While there is one, it is waited for `patience_s` seconds; raises `StoreError` then.
        """
        began = self._clock()
        while True:
            try:
                with self._lock:
                    self._store.change((keys.epoch(self.guard.run),), self._allowed)
            except StoreError as error:
                waited_s = self._clock() - began
                if waited_s < (self._patience_s if self.has_standby else LEASE_S):
                    self._sleep(RENEW_S)
                    continue
                if self.has_standby:
                    raise type(error)(
                        f"{error}; so it is not known which master has the run, and this one has written nothing for "
                        f"{waited_s:.0f} s"
                    ) from None
            return

    def entry(self) -> bytes:
        """The journal's entry of the newest version that can be seen; empty if there is none. Raises `StoreError`."""
        name = keys.journal(self.guard.run)
        found = self._look_at(name)[name]
        return b"" if found is None else found.data

    def former_entries(self) -> list[bytes]:
        """The latest entries of the journal, in any order. Raises `StoreError`."""
        names = [keys.former_entry(self.guard.run, place) for place in range(FORMER)]
        return [one.data for one in self._look_at(*names).values() if one is not None]

    def expect_standby(self, may_come: bool) -> None:
        """Whether a standby follows, and may take over."""
        self.has_standby = self.guard.keeps_former = may_come

    def _look_at(self, *names: str) -> Smalls:
        def look() -> Smalls:
            with self._lock:
                return look_at(self._store, names)

        patience = Patience(self._patience_s, clock=self._clock, sleep=self._sleep, has_worked=True)
        return patience.call(look)

    def _allowed(self, found: Smalls) -> Smalls:
        self.guard.require(found[keys.epoch(self.guard.run)])
        return {}


def _address_of(lease: Small) -> str:
    return lease.data.partition(b" ")[2].decode(errors="replace")
