"""A lease is a range of positions in the order of an epoch; any process computes that order from the run's seed.

Each record of each epoch is trained once: `speedo.master.lease_book` gives the leases out, `speedo.worker.share` turns
them into batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

UNKNOWN: Final = 1 << 40  # records: those of a stream of which no worker has come to the end


@dataclass(frozen=True, slots=True, order=True)
class Lease:
    """The positions from `start` to before `stop` in the order of `epoch`; never empty."""

    epoch: int
    start: int
    stop: int

    def __post_init__(self) -> None:
        if not (self.epoch >= 0 and 0 <= self.start < self.stop):
            raise ValueError(f"{self.epoch}: {self.start} to {self.stop} is no range of an epoch")

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def end(self) -> tuple[int, int]:
        """The epoch, and the first position in it that is behind the range."""
        return self.epoch, self.stop


class NoLease(Enum):
    """`WAIT`: nothing is free, but what others hold may come back. `OVER`: all records of all epochs are settled.

    `ENDED`: the run is over, whatever is left.
    """

    WAIT = "wait"
    OVER = "over"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A worker asks for at most `count` positions; with 0 it only says what it has `skipped`.

    `records` and `shuffle` are those of its data set. Its own loop is in `epoch`; `epochs` is how many its script
    wants in all, 0 if that is not known: then one more than `epoch`. `skipped` are parts of its leases that it does
    not train: the last, smaller batch of an epoch, where the script drops it, or what is behind the end of a stream. A
    worker that `waits` has reported all that it trained, and asks whether something came back.
    """

    records: int
    shuffle: bool
    count: int
    epoch: int
    epochs: int = 0
    skipped: tuple[Lease, ...] = ()
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker holds these leases of a former master, of `records` in all; the answer has those that others have."""

    records: int
    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class DealRequest:
    """A team's leader asks for the records of its next `rounds`, in each at most `request.count` for each member.

    `number` is `Team.formed`, and which deal of that team this is. `members` are worker and incarnation. With
    `drop_last` what is left at the end of an epoch for less than a whole batch is not trained. If the script `divides`,
    its batches may have other sizes, as long as those of a round add up to the same.
    """

    number: tuple[int, int]
    request: LeaseRequest
    members: tuple[tuple[int, int], ...]
    rounds: int
    drop_last: bool = False
    divides: bool = False


@dataclass(frozen=True, slots=True)
class NotDealt:
    """A member has parted from its team, and did not get its part of the deal of this `number`, the team's next.

    The leader may have asked for that deal, and died before it handed it out. Its request may also come later.
    """

    number: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Dealt:
    """The answer: for each round what each member trains, in the order of the members; None is nothing.

    The ranges of a round follow each other and are of one epoch, so all members together train the batch that one
    process would. `short` says why there are fewer rounds than asked for; None if there are not.
    """

    rounds: tuple[tuple[Lease | None, ...], ...]
    short: NoLease | None = None


def order_of(records: int, epoch: int, seed: int, shuffle: bool) -> NDArray[np.int64]:
    """The record number at each position of the epoch.

    Sorted by raw 64-bit values of PCG64, which NumPy keeps the same in all its versions, unlike `permutation`: the
    hosts of a run may have different ones.
    """
    if not shuffle:
        return np.arange(records, dtype=np.int64)
    keys = np.random.PCG64([seed, epoch]).random_raw(records)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)


def join_ranges(leases: Iterable[Lease]) -> tuple[Lease, ...]:
    """The same positions, sorted, in as few ranges as possible. No position may be there twice."""
    found: list[Lease] = []
    for one in sorted(leases):
        last = found[-1] if found else None
        if last is None or last.epoch != one.epoch or last.stop < one.start:
            found.append(one)
        elif last.stop == one.start:
            found[-1] = Lease(one.epoch, last.start, one.stop)
        else:
            raise ValueError(f"{one} overlaps {last}")
    return tuple(found)


def divided(leases: Iterable[Lease], count: int) -> tuple[tuple[Lease, ...], tuple[Lease, ...]]:
    """The first `count` positions of these, in their order, and those after them."""
    first, rest = list[Lease](), list[Lease]()
    for one in leases:
        cut = one.start + max(0, min(count, len(one)))
        count -= len(one)
        if one.start < cut:
            first.append(Lease(one.epoch, one.start, cut))
        if cut < one.stop:
            rest.append(Lease(one.epoch, cut, one.stop))
    return tuple(first), tuple(rest)


def without(leases: Iterable[Lease], gone: Iterable[Lease]) -> tuple[Lease, ...]:
    """The joined `leases` less the ranges in `gone`, each of which must be within one of them."""
    left = list(leases)
    for one in gone:
        for at, have in enumerate(left):
            if have.epoch == one.epoch and have.start <= one.start and one.stop <= have.stop:
                ends = ((have.start, one.start), (one.stop, have.stop))
                left[at : at + 1] = [Lease(one.epoch, a, b) for a, b in ends if a < b]
                break
        else:
            raise ValueError(f"{one} is not among the leases {left}")
    return tuple(left)
