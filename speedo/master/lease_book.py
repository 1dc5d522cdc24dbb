"""Who trains which records: each position of each epoch is settled once, also if workers join, leave or die.

A state machine without clock, I/O or threads. What is settled is not written down: it is all that was given out, less
what is free again, held by a worker, or in a turn whose result is neither merged nor dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from speedo.errors import CheckpointError, ConfigError
from speedo.exchange.lease import (
    UNKNOWN,
    Claim,
    DealRequest,
    Dealt,
    Lease,
    LeaseRequest,
    NoLease,
    join_ranges,
    without,
)


@dataclass
class _Holder:
    """A worker process in the run, and what it holds outside of turns."""

    incarnation: int
    leases: tuple[Lease, ...] = ()
    waits: bool = False  # it trains none of them
    deal: tuple[int, int] = (0, 0)  # the number of the last one
    dealt: tuple[Lease, ...] = ()  # its part of that
    missed: tuple[int, int] = (0, 0)  # the last deal that it said it did not get


@dataclass
class LeaseBook:
    """The leases of one run. `epoch` and `position` are the first that were not given out yet.

    `records` is 0 until the first worker has said how many there are, and `UNKNOWN` of a stream until one has come to
    its end.
    """

    seed: int
    records: int = 0
    shuffle: bool = False
    epoch: int = 0
    position: int = 0
    _free: tuple[Lease, ...] = ()  # given out before, and come back
    _wanted: int = 0  # epochs
    _all_known: bool = False  # whether these are all that the scripts want
    _held: dict[int, _Holder] = field(default_factory=dict)  # by worker
    _turns: dict[int, tuple[Lease, ...]] = field(default_factory=dict)  # by ticket
    shares: Mapping[int, int] = field(default_factory=dict)  # of rounds divided by speed

    # ------------------------------------------------------------ workers

    def joined(self, worker: int, incarnation: int) -> None:
        """A worker process may ask now. A former one of the same worker has left."""
        former = self._held.get(worker)
        if former is not None:
            if former.incarnation >= incarnation:
                return
            self.left(worker, former.incarnation)
        self._held[worker] = _Holder(incarnation)

    def left(self, worker: int, incarnation: int) -> None:
        """What it holds is free again, but for the turns that it reported: those may still be merged."""
        holder = self._holder(worker, incarnation)
        if holder is not None:
            del self._held[worker]
            self._take_back(holder.leases)

    def lease(self, worker: int, incarnation: int, request: LeaseRequest) -> Lease | NoLease:
        """What came back first, then the next positions; at most `request.count`, and never of two epochs.

        A ConfigError names what is wrong with the worker's data set. A process that is not in the run has to wait.
        """
        holder = self._holder(worker, incarnation)
        if holder is None:
            return NoLease.WAIT
        self._take_records(worker, request.records)
        holder.leases, self.shuffle = without(holder.leases, request.skipped), request.shuffle
        self._wanted = max(self._wanted, request.epochs or request.epoch + 1)
        self._all_known = request.epochs > 0
        holder.waits = request.waits
        if not request.count:
            return NoLease.WAIT
        if self._free:
            first = self._free[0]
            found = Lease(first.epoch, first.start, min(first.stop, first.start + request.count))
            self._free = without(self._free, (found,))
        elif self.epoch < self._wanted:
            found = self._next(request.count)
        else:
            return NoLease.OVER if self._nothing_comes(holder) else NoLease.WAIT
        holder.leases, holder.waits = join_ranges((*holder.leases, found)), False
        return found

    def deal(self, deal: DealRequest) -> Dealt:
        """Leases to all members of a team, round after round; see `lease`.

        No rounds if the team is broken: a member is not in the run, or parted before this deal.
        """
        holders = [self._holder(*member) for member in deal.members]
        if any(holder is None or holder.missed >= deal.number for holder in holders):
            return Dealt((), NoLease.WAIT)
        found = self._deal(deal)
        for holder, part in zip(holders, zip(*found.rounds, strict=True), strict=False):
            if holder is not None:
                holder.deal, holder.dealt = deal.number, tuple(one for one in part if one)
        return found

    def not_dealt(self, worker: int, incarnation: int, number: tuple[int, int]) -> None:
        """What this deal gave to the worker is free again; if it was not made yet, it is not made."""
        holder = self._holder(worker, incarnation)
        if holder is None:
            return
        holder.missed = number
        if holder.deal == number:
            holder.leases = without(holder.leases, holder.dealt)
            self._take_back(holder.dealt)
            holder.dealt = ()

    def _deal(self, deal: DealRequest) -> Dealt:
        request, rounds = deal.request, list[tuple[Lease | None, ...]]()
        while len(rounds) < deal.rounds:
            dealt: list[Lease | None] = []
            for member in deal.members:
                own = self.shares.get(member[0], deal.request.count)
                count = own if deal.divides else deal.request.count
                found = self.lease(*member, replace(request, count=count))
                request = replace(request, skipped=())
                if not isinstance(found, Lease):
                    if not any(dealt):
                        return Dealt(tuple(rounds), found)
                    break
                ends = found.stop == self.records
                if ends and deal.drop_last and len(found) < request.count:
                    self._skip(member, found)
                else:
                    dealt.append(found)
                if ends:
                    break
            if dealt:
                rounds.append((*dealt, *(None,) * (len(deal.members) - len(dealt))))
        return Dealt(tuple(rounds))

    def trained(self, worker: int, incarnation: int, ticket: int, ranges: Iterable[Lease]) -> None:
        """The worker reports a turn that trained these parts of its leases."""
        holder = self._holder(worker, incarnation)
        if holder is not None:
            whole = join_ranges(ranges)
            holder.leases = without(holder.leases, whole)
            self._turns[ticket] = join_ranges((*self.of_ticket(ticket), *whole))

    def claim(self, ranges: Iterable[Lease]) -> bool:
        """Take these positions, which another book gave out, if nobody else has them; whether that is so."""
        wanted = join_ranges(ranges)
        while wanted and (self.epoch, self.position) < (last := wanted[-1]).end:
            left = last.stop - self.position if self.epoch == last.epoch else self.records
            self._take_back((self._next(left),))
        try:
            self._free = without(self._free, wanted)
        except ValueError:
            return False
        return True

    def give(self, worker: int, incarnation: int, ranges: Iterable[Lease]) -> None:
        """The worker holds these positions, which were claimed for it."""
        holder = self._holder(worker, incarnation)
        if holder is not None:
            holder.leases = join_ranges((*holder.leases, *ranges))

    def brings(self, worker: int, incarnation: int, claim: Claim) -> tuple[Lease, ...]:
        """The worker holds these leases of a former master, but for those that others have: these are returned."""
        self._take_records(worker, claim.records)
        found = [one for one in claim.leases if self.claim((one,))]
        self.give(worker, incarnation, found)
        return tuple(one for one in claim.leases if one not in found)

    def returned(self, worker: int, incarnation: int, ranges: Iterable[Lease]) -> None:
        """The worker trains these parts of its leases no more: they are free again."""
        holder, whole = self._holder(worker, incarnation), join_ranges(ranges)
        if holder is not None:
            holder.leases = without(holder.leases, whole)
            self._take_back(whole)

    # ------------------------------------------------------------ turns

    def merged(self, ticket: int) -> None:
        """Its result is in the center: its positions are settled."""
        self._turns.pop(ticket, None)

    def dropped(self, ticket: int) -> None:
        """Its result was discarded, refused or late: its positions are free again."""
        self._take_back(self._turns.pop(ticket, ()))

    def not_trained(self, ticket: int, ranges: tuple[Lease, ...]) -> None:
        """These positions of a reported turn are free again."""
        self._turns[ticket] = without(self.of_ticket(ticket), ranges)
        self._take_back(ranges)

    def of_ticket(self, ticket: int) -> tuple[Lease, ...]:
        """What a reported turn trained, until it is merged or dropped."""
        return self._turns.get(ticket, ())

    def settled(self, epoch: int) -> int:
        """How many positions of the epoch are settled."""
        given = self.records if epoch < self.epoch else self.position * (epoch == self.epoch)
        return given - sum(len(one) for one in self._unsettled() if one.epoch == epoch)

    @property
    def is_over(self) -> bool:
        """Whether all records of all epochs that the scripts want are settled."""
        given = self.records > 0 and self._all_known and self.epoch >= self._wanted
        return given and next(self._unsettled(), None) is None

    @property
    def gives_more(self) -> bool:
        """Whether there are positions for who asks next."""
        return bool(self._free) or self.epoch < self._wanted

    @property
    def has_free(self) -> bool:
        """Whether something has come back that nobody has."""
        return bool(self._free)

    @property
    def given(self) -> int:
        """How many positions were given out, through all epochs."""
        return self.epoch * self.records + self.position

    @property
    def unsettled(self) -> int:
        """How many positions were given out and are not settled."""
        return sum(map(len, self._unsettled()))

    @property
    def first_unsettled(self) -> int:
        """The first epoch with positions that are not settled."""
        return min((one.epoch for one in self._unsettled()), default=self.epoch)

    # ------------------------------------------------------------ checkpoints

    def state(self, merging: Collection[int] = ()) -> dict[str, Any]:
        """All that a resumed run needs, for JSON. What workers hold is free there: they are others.

        The turns with these tickets are `merging`, and count as settled.
        """
        turns = (ranges for ticket, ranges in self._turns.items() if ticket not in merging)
        return {
            "seed": self.seed,
            "records": self.records,
            "shuffle": self.shuffle,
            "epoch": self.epoch,
            "position": self.position,
            "free": [
                [one.epoch, one.start, one.stop] for one in join_ranges(self._unsettled(turns))
            ],
            "wanted": self._wanted if self._all_known else 0,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, same_scripts: bool = False) -> LeaseBook:
        """The book of a run that goes on, with the `same_scripts` or with others, which may want other epochs."""
        try:
            wanted = state.get("wanted", 0) if same_scripts else 0
            numbers = [state[name] for name in ("seed", "records", "epoch", "position")]
            free = join_ranges(Lease(*three) for three in state["free"])
            seed, records, epoch, position = numbers
            if not all(type(one) is int and one >= 0 for one in numbers) or position > records:
                raise ValueError(f"{numbers}")
            for one in free:
                if one.stop > (records if one.epoch < epoch else position * (one.epoch == epoch)):
                    raise ValueError(f"{one}")
            shuffle = bool(state["shuffle"])
            return cls(seed, records, shuffle, epoch, position, free, wanted, wanted > 0)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint's table of trained records is damaged ({error}): "
                "resume from an older checkpoint"
            ) from error

    # ------------------------------------------------------------ parts

    def _holder(self, worker: int, incarnation: int) -> _Holder | None:
        holder = self._held.get(worker)
        return holder if holder is not None and holder.incarnation == incarnation else None

    def _next(self, count: int) -> Lease:
        """At most this many positions that were not given out yet."""
        found = Lease(self.epoch, self.position, min(self.records, self.position + count))
        at_end = found.stop == self.records
        self.epoch, self.position = (self.epoch + 1, 0) if at_end else (self.epoch, found.stop)
        return found

    def _skip(self, member: tuple[int, int], lease: Lease) -> None:
        """Nobody trains this part of its leases."""
        holder = self._held[member[0]]
        holder.leases = without(holder.leases, (lease,))

    def _take_back(self, leases: tuple[Lease, ...]) -> None:
        self._free = join_ranges(
            replace(one, stop=min(one.stop, self.records))
            for one in (*self._free, *leases)
            if one.start < self.records
        )

    def _nothing_comes(self, asks: _Holder) -> bool:
        """All is settled; or what is not is held by workers that wait themselves: a script made no step on it."""
        if next(self._unsettled(), None) is None:
            return True
        others = (holder.waits or not holder.leases for holder in self._held.values())
        return asks.waits and not self._free and not self._turns and all(others)

    def _unsettled(self, turns: Iterable[tuple[Lease, ...]] | None = None) -> chain[Lease]:
        held = (holder.leases for holder in self._held.values())
        return chain(self._free, *held, *(self._turns.values() if turns is None else turns))

    def _take_records(self, worker: int, records: int) -> None:
        """So many has the worker's data. Of a stream the first worker that comes to the end says it, in epoch 0."""
        if self.records and self.records != records and UNKNOWN not in (self.records, records):
            raise ConfigError(
                f"worker {worker} shares a data set of {records} records, the run has one of "
                f"{self.records}: give run.share the same data set on every worker, and in each epoch"
            )
        if records < self.records:
            self.records, self.epoch, self.position = records, 1, 0
            self._take_back(())
        self.records = self.records or records
