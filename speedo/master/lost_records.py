"""Counts the records of results that were not merged, where nobody trains them again (`--data-share shard`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from speedo.master.reasons import RUN_OVER
from speedo.messages import Action, Drop, Event, Finish, Joined, Left, Merge, Train, Trained


@dataclass
class LostRecords:
    """An observer of the run, and the way of its actions: the last one says how many records were left out."""

    left_out: int = 0
    _per_step: dict[int, int] = field(default_factory=dict)  # by worker
    # Worker and records, by ticket.
    _turns: dict[int, tuple[int, int]] = field(default_factory=dict)
    _reported: set[int] = field(default_factory=set)  # tickets whose results have come
    # Likewise those that are lost, but for what their team has made of them
    _lost: dict[int, tuple[int, int]] = field(default_factory=dict)

    def saw(self, event: Event, now: float) -> None:
        match event:
            case Joined():
                self._lose(event.worker)
                self._per_step[event.worker] = event.samples_per_step
            case Left():
                self._lose(event.worker)
            case Trained() if event.ticket in self._turns:
                self._reported.add(event.ticket)
                if event.broken:
                    self._lose_turn(event.ticket)

    def did(self, action: Action, now: float) -> None:
        """See `Observer.did`; `with_records` has seen it."""

    def with_records(self, action: Action) -> Action:
        """The same action; the end of the run with the count."""
        match action:
            case Train():
                per_step = self._per_step.get(action.worker, 0)
                self._turns[action.ticket] = action.worker, action.all_steps * per_step
            case Merge():
                for part in action.parts:
                    self._end(part.ticket)
                    worker, whole = self._lost.pop(part.ticket, (part.worker, 0))
                    # Of a step that was not made the records are read.
                    untrained = min(max(0, whole - part.samples), self._per_step.get(worker, 0))
                    self.left_out -= whole - untrained
            case Drop() if action.decision != "late":
                lost = self._end(action.ticket)
                if action.reason != RUN_OVER:
                    self.left_out += lost
                    self._lose(action.worker)  # what it was given ahead is void as well
            case Finish():
                return replace(action, left_out=self.left_out)
        return action

    def _end(self, ticket: int) -> int:
        self._reported.discard(ticket)
        return self._turns.pop(ticket, (0, 0))[1]

    def _lose(self, worker: int) -> None:
        """No result of this worker is to come, but for those that have."""
        for ticket, (whose, _) in list(self._turns.items()):
            if whose == worker and ticket not in self._reported:
                self._lose_turn(ticket)

    def _lose_turn(self, ticket: int) -> None:
        self._lost[ticket] = self._turns[ticket]
        self.left_out += self._end(ticket)
