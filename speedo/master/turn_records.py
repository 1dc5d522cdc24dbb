"""Gives each turn of an engine its records, so that each is trained exactly once an epoch (`--data-share once`).

The positions are those of a `LeaseBook`. A turn's records are given with its command: what is not in a turn is free, so
no worker waits for another's. A worker is given a block of positions that follow each other and takes its turns from
its front, so that it seldom has to jump; when no others are left, the rest of a block goes to whoever needs records.
A result that is not merged, for whatever reason, gives its positions back, and the next worker in need gets them first.

A turn is longer than what is left of the run by less than a step: such a turn goes on into the next epoch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from speedo.errors import CheckpointError
from speedo.exchange.lease import Lease, LeaseRequest, divided
from speedo.master.lease_book import LeaseBook
from speedo.master.reasons import AT_MAX_ITER, RUN_OVER
from speedo.messages import (
    Action,
    Divided,
    Drop,
    Event,
    Finish,
    Joined,
    Left,
    Merge,
    Part,
    Records,
    SetAside,
    Train,
    Trained,
)

# Of an epoch, for each worker: a jump costs about 10 ms (bench/results/records.md), reading such a block 0.5 s or more.
_BLOCKS: Final = 20


@dataclass
class _Reader:
    """A worker process: records of its step, and what it has in no turn yet, which follow each other."""

    incarnation: int
    per_step: int
    ahead: tuple[Lease, ...] = ()


@dataclass
class _Given:
    """The records of a turn whose result has not come."""

    worker: int
    incarnation: int
    records: tuple[Lease, ...]


@dataclass
class TurnRecords:
    """An observer of the run, and the way of its actions: `with_records` sees each before it is carried out.

    `samples` are those of the whole run. `note` is called at the end if records of it stay untrained.
    """

    book: LeaseBook
    samples: int
    note: Callable[[str], None] = lambda text: None
    again: int = 0  # records that came back, and were to be trained once more
    _readers: dict[int, _Reader] = field(default_factory=dict)  # by worker
    _turns: dict[int, _Given] = field(default_factory=dict)  # by ticket
    _brought: dict[int, tuple[Lease, ...]] = field(default_factory=dict)  # likewise
    # Likewise, of workers that are gone, or whose team has ended the turn: the first of them may be trained
    _left: dict[int, tuple[Lease, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    @classmethod
    def of_run(
        cls, records: int, samples: int, merged: int, former: bytes, note: Callable[[str], None]
    ) -> TurnRecords:
        """Those of a run that has `merged` some of its `samples`; it continues from a `former` `state`, if it is here.

        Otherwise the first `merged` positions count as trained. Raises `CheckpointError` for a state that is damaged.
        """
        if former:
            try:
                book = LeaseBook.from_state(json.loads(former))
            except (ValueError, TypeError, RecursionError) as error:
                raise CheckpointError(
                    f"the checkpoint's table of trained records is damaged ({error}): "
                    "resume from an older checkpoint"
                ) from error
            if book.records == records:
                return cls(book, samples, note)
            note(f"warning: the run had {book.records:,} training records and has {records:,} now")
        epoch, position = divmod(merged, records)
        return cls(LeaseBook(0, records, epoch=epoch, position=position), samples, note)

    def state(self) -> bytes:
        with self._lock:
            return json.dumps(self.book.state()).encode()

    @property
    def missing(self) -> int:
        """How many of the run's records are in no result that was merged."""
        known, records = self.book.state()["free"], self.book.records
        ends = ((epoch * records + start, epoch * records + stop) for epoch, start, stop in known)
        held: int = sum(max(0, min(stop, self.samples) - start) for start, stop in ends)
        return held + max(0, self.samples - self.book.given)

    def take_up(self, handed: Trained) -> bool:
        """Whether a result of a former master's turn may count: nobody else was given one of its records since."""
        ranges = tuple(Lease(*three) for three in handed.records)
        with self._lock:
            if not self.book.claim(ranges):
                return False
            self._brought[handed.ticket] = ranges
        return True

    def saw(self, event: Event, now: float) -> None:
        with self._lock:
            match event:
                case Joined():
                    self._forget(event.worker)
                    self.book.joined(event.worker, event.incarnation)
                    own = _Reader(event.incarnation, event.samples_per_step)
                    self._readers[event.worker] = own
                    if event.handed is not None:
                        self._go_on_with(event.handed)
                case Left():
                    reader = self._readers.get(event.worker)
                    if reader is not None and reader.incarnation == event.incarnation:
                        self._forget(event.worker)
                case Trained():
                    self._trained(event)

    def did(self, action: Action, now: float) -> None:
        """See `Observer.did`; `with_records` has seen it."""

    def with_records(self, action: Action) -> Action:
        """The action, with records if it is a command to train."""
        with self._lock:
            if isinstance(action, Train | Finish):  # the next stretch begins: the last one was void
                for ticket in list(self._left):
                    self._of_left(ticket, 0)
            match action:
                case Merge():
                    return replace(action, parts=tuple(map(self._merged, action.parts)))
                # The records of late results came back when these were given up; not of one that was brought.
                case Drop() if action.decision != "late" or action.ticket in self._brought:
                    self._brought.pop(action.ticket, None)
                    self._dropped(action)
                case Divided():
                    for worker, size in zip(action.workers, action.records, strict=True):
                        if (own := self._readers.get(worker)) is not None:
                            own.per_step = size * action.unit
                            if not size:
                                self.book.returned(worker, own.incarnation, own.ahead)
                                own.ahead = ()
                case Train() if (reader := self._readers.get(action.worker)) is not None:
                    return self._give(action, reader)
                case SetAside():
                    self._forget(action.worker)
                case Finish():
                    at_end = action.complete and action.reason.startswith(AT_MAX_ITER)
                    missing = self.missing if at_end else 0
                    if missing:
                        self.note(
                            f"warning: {missing:,} records that the run was to train are in no result that was merged"
                        )
                    return replace(action, trained_again=self.again, left_out=missing)
        return action

    # ------------------------------------------------------------ parts

    def _merged(self, part: Part) -> Part:
        self._brought.pop(part.ticket, None)
        if part.ticket in self._left:
            part = replace(part, records=self._of_left(part.ticket, part.samples))
        self.book.merged(part.ticket)
        return part

    def _ends(self, ticket: int) -> None:
        given = self._turns.pop(ticket)
        self.book.trained(given.worker, given.incarnation, ticket, given.records)
        self._left[ticket] = given.records

    def _of_left(self, ticket: int, count: int) -> Records:
        """So many records of this turn are trained, the first, which are returned."""
        trained, rest = divided(self._left.pop(ticket), count)
        self.again += sum(map(len, rest))
        self.book.not_trained(ticket, rest)
        return tuple((one.epoch, one.start, one.stop) for one in trained)

    def _go_on_with(self, handed: Trained) -> None:
        """Its worker has joined: the turn is as one that was given here."""
        who, ranges = (handed.worker, handed.incarnation), self._brought.get(handed.ticket, ())
        self.book.give(*who, ranges)
        self._turns[handed.ticket] = _Given(*who, ranges)

    def _give(self, command: Train, reader: _Reader) -> Train:
        per_step = reader.per_step
        if command.team is not None:
            per_step = next(n for worker, _, n in command.team.members if worker == command.worker)
        count, found = command.all_steps * per_step, list[Lease]()
        while count:
            if not reader.ahead:
                reader.ahead = (self._block(command.worker, reader, count),)
            first, reader.ahead = divided(reader.ahead, count)
            count -= sum(map(len, first))
            for one in first:
                last = found[-1] if found else None
                if last is not None and (last.epoch, last.stop) == (one.epoch, one.start):
                    one = Lease(one.epoch, found.pop().start, one.stop)
                found.append(one)
        self._turns[command.ticket] = _Given(command.worker, reader.incarnation, tuple(found))
        records = tuple((one.epoch, one.start, one.stop) for one in found)
        return replace(command, records=records, ahead=sum(map(len, reader.ahead)))

    def _block(self, worker: int, reader: _Reader, count: int) -> Lease:
        """The next positions for a worker that has none: whole turns of `count`, if there are as many."""
        book = self.book
        left = self.samples - book.given
        if not book.has_free and left <= 0:
            self._take_from_another(count)
        turns = book.records // (_BLOCKS * len(self._readers)) // count
        most = max(1, turns) * count
        if not book.has_free:
            most = min(most, left) if left > 0 else count
        found = book.lease(
            worker, reader.incarnation, LeaseRequest(book.records, False, most, book.epoch)
        )
        assert isinstance(found, Lease)
        return found

    def _take_from_another(self, count: int) -> None:
        """Free the end of the longest block, if there is one."""
        worker, reader = max(self._readers.items(), key=lambda one: sum(map(len, one[1].ahead)))
        has = sum(map(len, reader.ahead))
        reader.ahead, gone = divided(reader.ahead, max(0, has - count))
        self.book.returned(worker, reader.incarnation, gone)

    def _trained(self, event: Trained) -> None:
        given = self._turns.get(event.ticket)
        if given is None or (given.worker, given.incarnation) != (event.worker, event.incarnation):
            return
        if event.broken:  # by how many rounds is decided once all have answered
            return self._ends(event.ticket)
        del self._turns[event.ticket]
        trained, rest = divided(given.records, event.samples)
        self.book.trained(given.worker, given.incarnation, event.ticket, trained)
        self._return(given, rest)

    def _dropped(self, action: Drop) -> None:
        before = self.again
        self._left.pop(action.ticket, None)
        self.again += sum(map(len, self.book.of_ticket(action.ticket)))
        self.book.dropped(action.ticket)
        for ticket, given in list(self._turns.items()):
            # It owes no result of a turn that it was given ahead, which begins with this one.
            also = action.decision != "late" and given.worker == action.worker
            if ticket == action.ticket or also:
                del self._turns[ticket]
                self._return(given, given.records)
        if action.reason == RUN_OVER:
            self.again = before

    def _return(self, given: _Given, records: Iterable[Lease]) -> None:
        back = tuple(records)
        self.again += sum(map(len, back))
        self.book.returned(given.worker, given.incarnation, back)

    def _forget(self, worker: int) -> None:
        """The process is gone: what it has is free, but for its turns until the next is given."""
        reader = self._readers.pop(worker, None)
        if reader is None:
            return
        for ticket, given in list(self._turns.items()):
            if given.worker == worker:
                self._ends(ticket)
        self.book.left(worker, reader.incarnation)
