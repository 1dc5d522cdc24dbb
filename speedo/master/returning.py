"""Another master takes over: it waits some seconds for the workers of the former one, and takes them in together.

Otherwise the first that is back would be the whole cluster: an elastic rule, whose rate depends on the number of
workers, would merge it with that of one worker, and a round would be closed without the others' results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from speedo.master.members import Turn
from speedo.master.reasons import waits_for_workers
from speedo.master.teams import Stretch
from speedo.master.turn_book import TurnBook
from speedo.messages import Action, Decision, Event, Joined, Refused, Trained, Waiting


@dataclass
class ReturningBook(TurnBook):
    """The books of a run that another master may have begun; nobody trains before that one's workers are back.

    `awaited` are those that are not back yet. `_brought` has the results of its turns that are to be waited for, by
    worker, each with the version that it began from.
    """

    started: bool = False  # as many workers as were planned have been there
    awaited: set[int] = field(default_factory=set)
    _left: dict[int, bool] = field(default_factory=dict)  # who left, and whether its work is done
    _missing: str = ""  # the last `Waiting`
    _brought: dict[int, tuple[Trained, int]] = field(default_factory=dict)

    @property
    def expected(self) -> Iterable[int]:
        """The workers that another master would wait for."""
        return {*self.members, *self.awaited} if self.started else range(self.plan.workers)

    @property
    def short_of_workers(self) -> bool:
        """Whether the run stands still until more workers join."""
        return not self.finished and len(self.members) < self._needed

    @property
    def _makes_no_step(self) -> bool:
        """Whether fewer workers are there than may make a step, where one alone may not."""
        return self.started and self.plan.min_workers > 1 and self.short_of_workers

    @property
    def _needed(self) -> int:
        """How many workers must be there; not those whose work is done."""
        needed = self.plan.min_workers if self.started else self.plan.workers
        return max(1, needed - sum(self._left.values()))

    def _say_who_is_missing(self, actions: list[Action]) -> None:
        """Once when too few are there, and once when enough are back."""
        if self._makes_no_step == bool(self._missing) or self.finished:
            return
        words = waits_for_workers(len(self.members), self._needed)
        self._missing = "" if self._missing else words
        actions.append(Waiting(self._missing))

    def _is_back(self, event: Joined) -> None:
        self.awaited.discard(event.worker)
        if event.handed is not None:
            self._brought[event.worker] = (event.handed, event.begun)

    def _is_gone(self, worker: int) -> None:
        self.awaited.discard(worker)
        self._brought.pop(worker, None)

    def _take_up(self, *, with_others: bool) -> Decision:
        """Let those that have brought a result join, and with them all others that wait, if they are to train.

        A result is waited for as that of the turn that its worker would get now. If it would get none, it comes late.
        """
        brought, self._brought = self._brought, {}
        own = {
            self.members[worker].unit: one
            for worker, one in brought.items()
            if self._joins_with_result(worker)
        }
        others = self._units_to_join() if with_others else ()
        decision = self.strategy.on_join((*own, *others))
        for unit in decision.train:
            if unit in own:
                self._wait_for(unit, *own[unit])
        return replace(decision, train=tuple(unit for unit in decision.train if unit not in own))

    def _joins_with_result(self, worker: int) -> bool:
        team = self._teams.get(self.members[worker].unit)
        if team is not None and (team.joined or team.owing):
            return False  # it joins with its next turn
        self._parked.discard(worker)
        if team is not None:
            team.joined = True
            team.add(worker)
        return True

    def _wait_for(self, unit: int, handed: Trained, begun: int) -> None:
        member = self.members[handed.worker]
        before = self.received - max(0, self.version - begun)  # as stale as versions have passed
        per_step = member.samples_per_step * self._tuning.batches
        turn = Turn(handed.ticket, handed.samples, before, self.strategy.rule, per_step=per_step)
        self._samples_in_flight += turn.samples
        member.turns.append(turn)
        member.latest = turn.ticket
        if (team := self._teams.get(unit)) is not None:
            turn.stretch = team.stretch = Stretch(unit, turn.rule, (handed.worker,))


@dataclass
class Returners:
    """Keeps what the workers of a former master bring until those of `book` are back.

    Who is not back `limit_s` seconds after the first of them is not waited for; nor is anybody for so long where the
    work of the run is done.
    """

    book: ReturningBook
    limit_s: float
    deadline: float = math.inf
    _results: list[Event] = field(default_factory=list)

    def begin(self, now: float) -> None:
        """The run goes on."""
        if self.book.complete:
            self.deadline = now + (self.limit_s if self.book.awaited else 0.0)

    def keeps(self, event: Event, now: float) -> bool:
        """Whether this event is kept for later."""
        if not self.book.awaited:
            return False
        if isinstance(event, Joined):
            self.deadline = min(self.deadline, now + self.limit_s)
        kept = isinstance(event, (Trained, Refused))
        if kept:
            self._results.append(event)
        return kept

    def are_late(self, now: float) -> bool:
        """Whether the time is over; said once."""
        if now < self.deadline:
            return False
        self.deadline = math.inf
        return True

    def brought(self) -> list[Event]:
        """What was kept, once nobody is awaited."""
        results: list[Event] = []
        if not self.book.awaited:
            results, self._results = self._results, results
        return results
