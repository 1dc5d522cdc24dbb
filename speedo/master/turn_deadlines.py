"""Derives the deadline of a turn from the turns measured so far, and finds the turns that are overdue."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from speedo.master.reasons import pauses_too_long, turn_overdue
from speedo.messages import Event, Left, Pause, Train

HEARTBEAT_S: Final = 10.0  # what a death may take to be noticed, on top of the turn itself
BROKEN_S: Final = 4.0  # the same in a team that the others have found broken
TURNS_MEASURED: Final = 200  # turn times that the deadline is taken from
MOST_PATIENCE: Final = 4.0  # times the deadline, for a slot that was overdue again and again
FEWEST_TURNS: Final = 5  # before this many are known the deadline is the user's timeout


@dataclass(slots=True)
class TurnUnderWay:
    """Its command, and when it began: when it was issued or, if issued ahead, when the turn before it ended.

    Seconds of the driver's clock. It `hurries` if its team is broken.
    """

    command: Train
    began: float
    hurries: bool = False


@dataclass
class TurnDeadlines:
    """A deadline is three times the 95th percentile of turns, plus the heartbeat; `first_s` until enough are measured.

    A slot whose turn was overdue gets twice the time until one of its turns ends in time. Otherwise a worker that is
    only slow could never finish a turn. A turn in which a worker builds its engine for another share of the batch gets
    `first_s` more, and is not measured. No turn has less than `least_s`, one of a team twice that: each member waits as
    long for the others.

    `outstanding(worker, ticket)` tells whether the result of that turn is still expected.
    """

    outstanding: Callable[[int, int], bool]
    first_s: float
    least_s: float = 0.0
    _pending: list[tuple[float, int, int, int]] = field(default_factory=list)
    _times: deque[float] = field(default_factory=lambda: deque(maxlen=TURNS_MEASURED))
    _per_step: deque[float] = field(default_factory=lambda: deque(maxlen=TURNS_MEASURED))
    _measured: int = 0
    _slow: tuple[float, float] | None = None
    _patience: dict[int, float] = field(default_factory=dict)
    _divisions: dict[int, int] = field(default_factory=dict)  # `Train.division` by worker

    def measure(self, turn: TurnUnderWay, now: float) -> None:
        """Record the duration of a turn that ended now."""
        seconds = now - turn.began
        self._patience.pop(turn.command.worker, None)
        if self._builds(turn.command):
            self._divisions[turn.command.worker] = turn.command.division
            return
        self._times.append(seconds)
        self._per_step.append(seconds / turn.command.all_steps)
        self._measured += 1
        if self._measured == FEWEST_TURNS or self._measured % 16 == 0:
            place = (95 * len(self._times)) // 100
            self._slow = (sorted(self._times)[place], sorted(self._per_step)[place])

    def limit(self, steps: int) -> float:
        """Seconds that a turn of this many steps may take; turns with more steps than those measured get more."""
        if self._slow is None:
            return self.first_s
        whole, per_step = self._slow
        return 3.0 * max(whole, per_step * steps) + HEARTBEAT_S

    def limit_of(self, command: Train) -> float:
        """Seconds that this turn may take."""
        least = self.least_s * (1 if command.team is None else 2)
        return max(least, self.limit(command.all_steps)) + (
            self.first_s if self._builds(command) else 0.0
        )

    def _builds(self, command: Train) -> bool:
        return command.division != self._divisions.get(command.worker, 0)

    def add(self, command: Train, now: float) -> None:
        """This turn begins now."""
        patience = self._patience.get(command.worker, 1.0)
        self._push(now + self.limit_of(command) * patience, command)

    def hurry(self, command: Train, now: float) -> None:
        """Its team is broken, so this turn ends with the round that its worker is at."""
        if self._slow is not None:
            usual = 3.0 * self._slow[1] * command.steps + BROKEN_S
            self._push(now + max(self.least_s, usual), command)

    def _push(self, limit: float, command: Train) -> None:
        heapq.heappush(self._pending, (limit, command.worker, command.incarnation, command.ticket))

    def grant(self, turns: list[TurnUnderWay], now: float) -> None:
        """Restart the deadlines of turns after an outage that was not the workers' fault."""
        self._pending.clear()
        for turn in turns:
            self.add(turn.command, now)

    def soonest(self) -> float:
        """When the next turn will be overdue; infinity without one."""
        pending = self._pending
        while pending and not self.outstanding(pending[0][1], pending[0][3]):
            heapq.heappop(pending)
        return pending[0][0] if pending else float("inf")

    def overdue(self, now: float) -> list[tuple[int, int]]:
        """Worker and incarnation of the turns whose deadline has passed; each is returned once."""
        late = []
        while self._pending and self._pending[0][0] <= now:
            _, worker, incarnation, ticket = heapq.heappop(self._pending)
            if self.outstanding(worker, ticket):
                late.append((worker, incarnation))
                patience = 2 * self._patience.get(worker, 1.0)
                self._patience[worker] = min(patience, MOST_PATIENCE)
        return late


@dataclass
class TurnsUnderWay:
    """The turns that were issued and not settled, in order for each worker; only the first has a deadline."""

    outstanding: Callable[[int, int], bool]
    deadlines: TurnDeadlines
    _turns: dict[int, list[TurnUnderWay]] = field(default_factory=dict)
    _pauses: dict[int, tuple[int, float]] = field(default_factory=dict)  # incarnation, deadline

    def __bool__(self) -> bool:
        return bool(self._turns)

    def issue(self, command: Train, now: float) -> None:
        """This turn was issued now."""
        turns = self._turns.setdefault(command.worker, [])
        turns.append(TurnUnderWay(command, now))
        if len(turns) == 1:
            self.deadlines.add(command, now)

    def measure(self, worker: int, ticket: int, now: float) -> None:
        """Record the duration of this turn, which ended now.

        Not if it overtook another, or a former master has issued it: its begin is unknown then.
        """
        turns = self._turns.get(worker)
        if turns and turns[0].command.ticket == ticket:
            self.deadlines.measure(turns[0], now)

    def hurry(self, workers: Iterable[int], now: float) -> None:
        """The teams of these are broken; their turns of them are not over."""
        for worker in workers:
            turns = self._turns.get(worker, [])
            if turns and not turns[0].hurries:
                turns[0] = replace(turns[0], hurries=True)
                self.deadlines.hurry(turns[0].command, now)

    def heard(self, event: Event, now: float) -> None:
        """A script that pauses says so again within the user's timeout, or is overdue."""
        if isinstance(event, (Pause, Left)):
            self._pauses.pop(event.worker, None)
        if isinstance(event, Pause) and not event.over:
            self._pauses[event.worker] = (event.incarnation, now + self.deadlines.first_s)

    def soonest(self) -> float:
        """When the next turn or pause will be overdue; infinity without one."""
        turns = self.deadlines.soonest()
        return min(turns, *(end for _, end in self._pauses.values())) if self._pauses else turns

    def overdue(self, now: float) -> list[tuple[int, int, str]]:
        """Worker, incarnation and what it missed, of those whose deadline has passed; each is returned once."""
        late = [
            (worker, incarnation, turn_overdue(now - self.first(worker).began))
            for worker, incarnation in self.deadlines.overdue(now)
        ]
        for worker, (incarnation, deadline) in list(self._pauses.items()):
            if deadline <= now:
                del self._pauses[worker]
                late.append((worker, incarnation, pauses_too_long(self.deadlines.first_s)))
        return late

    def first(self, worker: int) -> TurnUnderWay:
        """The turn that this worker is executing."""
        return self._turns[worker][0]

    def owed(self, now: float) -> list[tuple[Train, float, float | None]]:
        """The turns under way, for how long, and in how many seconds they are overdue; from any thread."""
        limits = {ticket: limit for limit, _, _, ticket in tuple(self.deadlines._pending)}
        found = []
        for turn in [turns[0] for turns in tuple(self._turns.values()) if turns]:
            limit = limits.get(turn.command.ticket)
            found.append((turn.command, now - turn.began, None if limit is None else limit - now))
        return found

    def settle(self, worker: int, now: float) -> list[Train]:
        """Remove and return the turns of this worker whose results are not expected any more."""
        over: list[Train] = []
        left: list[TurnUnderWay] = []
        for one in self._turns.pop(worker, ()):
            if not self.outstanding(worker, one.command.ticket):
                over.append(one.command)
                continue
            if over and not left:
                one.began = now
                self.deadlines.add(one.command, now)
            left.append(one)
        if left:
            self._turns[worker] = left
        return over

    def forget_all(self) -> list[Train]:
        """At the end of the run: remove and return all turns."""
        commands = [turn.command for turns in self._turns.values() for turn in turns]
        self._turns.clear()
        return commands

    def grant(self, now: float) -> None:
        """Restart all deadlines after an outage that was not the workers' fault."""
        self.deadlines.grant([turns[0] for turns in self._turns.values()], now)
        end = now + self.deadlines.first_s
        self._pauses = {worker: (one, end) for worker, (one, _) in self._pauses.items()}
