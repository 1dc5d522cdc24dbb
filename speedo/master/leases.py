"""The lease book of a run, as an observer of it: what is merged is settled, and what is lost is given out again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from speedo.errors import ConfigError
from speedo.exchange.lease import Claim, DealRequest, Dealt, Lease, LeaseRequest, NoLease
from speedo.master.lease_book import LeaseBook
from speedo.messages import (
    Action,
    Divided,
    Drop,
    Event,
    Finish,
    Left,
    Merge,
    Pause,
    SetAside,
    Trained,
)


class Leases:
    """Asked by workers from any thread, notified by the driver from its own thread."""

    def __init__(self, book: LeaseBook, note: Callable[[str], None]) -> None:
        """`note` is called if records stay untrained at the end."""
        self._book, self._note, self._lock = book, note, threading.Lock()
        self._gone: set[tuple[int, int]] = set()
        self._pausing: set[tuple[int, int]] = set()
        self._last: dict[int, int] = {}  # ticket, by worker
        self._again = Counter[int]()  # results that came once more, by ticket
        self._merging = set[int]()  # tickets
        self._finished = False
        self.may_divide = False  # whether the scripts take batches of any size
        self._first: tuple[int, Mapping[str, str]] | None = None  # worker and its data

    def all_trained(self) -> bool:
        """Whether nothing is left for any worker, also for one that comes again."""
        with self._lock:
            return self._book.is_over

    def lease(self, worker: int, incarnation: int, request: LeaseRequest) -> Lease | NoLease:
        """What this worker may train next. Raises `ConfigError` if its data set is another than the others'."""
        with self._lock:
            if self._finished:
                return NoLease.ENDED
            if (worker, incarnation) in self._gone:
                return NoLease.OVER
            self._book.joined(worker, incarnation)
            # What it trained before its pause is known only once the pause is.
            waits = request.waits and (worker, incarnation) in self._pausing
            return self._book.lease(worker, incarnation, replace(request, waits=waits))

    def check(self, worker: int, data: Mapping[str, str]) -> None:
        """Raises `ConfigError` if the worker's data is not that of the first that said what it has."""
        with self._lock:
            first, others = self._first = self._first or (worker, data)
        for name, value in data.items():
            if (there := others.get(name, value)) != value:
                raise ConfigError(
                    f"the data of worker {worker} is not that of worker {first}: {name} is {value} instead of "
                    f"{there}; workers divide record numbers, so each needs the same records in the same order: "
                    "seed random_split and what else is random, and sort what os.listdir and glob return"
                )

    def deal(self, deal: DealRequest) -> Dealt:
        """What the members of a team may train in their next rounds. Raises as `lease`."""
        with self._lock:
            for member in deal.members:
                if member in self._gone:
                    return Dealt((), NoLease.WAIT)  # the team will break
                self._book.joined(*member)
            self.may_divide = deal.divides
            return self._book.deal(deal)

    def divide(self, divided: Divided) -> None:
        """From the next deal on the workers of a team have these records of each round."""
        with self._lock:
            self._book.shares = dict(zip(divided.workers, divided.records, strict=True))

    def claim(self, worker: int, incarnation: int, claim: Claim) -> Claim:
        """What this worker cannot have of its leases of a former master. Raises as `lease`."""
        with self._lock:
            if (worker, incarnation) in self._gone:
                return claim
            self._book.joined(worker, incarnation)
            return replace(claim, leases=self._book.brings(worker, incarnation, claim))

    def not_dealt(self, worker: int, incarnation: int, number: tuple[int, int]) -> None:
        with self._lock:
            if (worker, incarnation) not in self._gone:
                self._book.joined(worker, incarnation)
                self._book.not_dealt(worker, incarnation, number)

    def state(self) -> dict[str, Any]:
        with self._lock:
            return self._book.state(self._merging)

    def saw(self, event: Event, now: float) -> None:
        with self._lock:
            if isinstance(event, Left):
                self._left(event)
            elif isinstance(event, Pause):
                change = self._pausing.discard if event.over else self._pausing.add
                change((event.worker, event.incarnation))
            elif isinstance(event, Trained) and event.ticket <= self._last.get(event.worker, 0):
                self._again[event.ticket] += 1
            elif isinstance(event, Trained):
                self._last[event.worker] = event.ticket
                leases = [Lease(*three) for three in event.records]
                self._book.trained(event.worker, event.incarnation, event.ticket, leases)

    def with_records(self, action: Action) -> Action:
        """The same action, which is to be carried out: in the journal of its version what it merges is settled."""
        if isinstance(action, Merge):
            with self._lock:
                self._merging.update(part.ticket for part in action.parts)
        return action

    def did(self, action: Action, now: float) -> None:
        with self._lock:
            if isinstance(action, SetAside):  # it may have asked for more since its last result
                self._left(action)
            elif isinstance(action, Merge):
                for part in action.parts:
                    self._book.merged(part.ticket)
                    self._merging.discard(part.ticket)
            elif isinstance(action, Drop):
                # Of a result that came twice this was the repetition, and the first one may be merged.
                if self._again[action.ticket]:
                    self._again[action.ticket] -= 1
                else:
                    self._book.dropped(action.ticket)
            elif isinstance(action, Finish):
                self._finished = True
                if action.complete and self._book.unsettled:
                    self._note(
                        f"warning: {self._book.unsettled:,} records that were begun are in no result that was merged"
                    )

    def _left(self, who: Left | SetAside) -> None:
        self._gone.add((who.worker, who.incarnation))
        self._book.left(who.worker, who.incarnation)
