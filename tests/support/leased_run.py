"""A run without a master: its book of leases, and a worker's share."""

from __future__ import annotations

from typing import Any

from speedo.exchange.lease import Lease, LeaseRequest, NoLease
from speedo.master.lease_book import LeaseBook
from speedo.worker.share import RecordShare

SEED = 5


class Run:
    """A book, and a worker's share of it; a worker that waits has its turn merged."""

    def __init__(self, **more: Any) -> None:
        self.book = LeaseBook(SEED)
        self.book.joined(0, 1)
        self.asked: list[LeaseRequest] = []
        self.turns: list[tuple[Lease, ...]] = []
        self.share = self.worker(0, **more)

    def worker(self, worker: int, **more: Any) -> RecordShare:
        return RecordShare(
            lambda request: self.lease(worker, request), self.merge_turn, SEED, **more
        )

    def lease(self, worker: int, request: LeaseRequest) -> Lease | NoLease:
        self.asked.append(request)
        return self.book.lease(worker, 1, request)

    def merge_turn(self) -> None:
        self.turns.append(self.share.taken()[0])
        assert len(self.turns) < 100, "it waits for ever"
        self.book.trained(0, 1, len(self.turns), self.turns[-1])
        self.book.merged(len(self.turns))

    def epoch(self, data: Any, *more: Any, **named: Any) -> list[Any]:
        return list(self.share.batches(data, *more, **named))
