"""The records of a script that runs by itself: one worker has them all."""

from __future__ import annotations

from collections.abc import Iterable

from speedo.exchange.lease import Lease, LeaseRequest, NoLease
from speedo.master.lease_book import LeaseBook

_ONLY = (0, 1)  # worker and incarnation


class OwnBook:
    """The lease book of a run of one worker."""

    def __init__(self) -> None:
        self._book, self._tickets = LeaseBook(seed=0), 0
        self._book.joined(*_ONLY)

    def lease(self, request: LeaseRequest) -> Lease | NoLease:
        """See `LeaseBook.lease`; there is nobody to wait for."""
        answer = self._book.lease(*_ONLY, request)
        return NoLease.OVER if answer is NoLease.WAIT else answer

    def trained(self, ranges: Iterable[Lease]) -> None:
        """These were trained for good."""
        self._tickets += 1
        self._book.trained(*_ONLY, self._tickets, ranges)
        self._book.merged(self._tickets)
