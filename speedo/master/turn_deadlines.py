"""How long a turn may take, from the turns measured so far; and which turns are overdue."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from speedo.messages import Train

HEARTBEAT_S: Final = 10.0  # what a death may take to be noticed, on top of the turn itself
TURNS_MEASURED: Final = 200  # turn times that the deadline is taken from
MOST_PATIENCE: Final = 4.0  # times the deadline, for a slot that was overdue again and again
FEWEST_TURNS: Final = 5  # before so many are known the deadline is the user's timeout


@dataclass(frozen=True, slots=True)
class TurnUnderWay:
    """Its command, and when it began: when it was issued or, given ahead, when the turn before it ended.

    Seconds of the driver's clock.
    """

    command: Train
    began: float


@dataclass
class TurnDeadlines:
    """Three times the 95th percentile of turns, plus the heartbeat; `first_s` as long as too few are known.

    A slot that was overdue gets twice the time from then on, until a turn of its own ends in time: one that is only
    slow would else never finish a turn.

    `outstanding(worker, ticket)` tells whether that turn's result is still waited for.
    """

    outstanding: Callable[[int, int], bool]
    first_s: float
    _pending: list[tuple[float, int, int, int]] = field(default_factory=list)
    _times: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=TURNS_MEASURED))
    _measured: int = 0
    _slow: tuple[float, float] | None = None
    _patience: dict[int, float] = field(default_factory=dict)

    def measure(self, turn: TurnUnderWay, now: float) -> None:
        """Take the time of a turn that has ended now."""
        seconds = now - turn.began
        self._patience.pop(turn.command.worker, None)
        self._times.append((seconds, seconds / turn.command.all_steps))
        self._measured += 1
        if self._measured == FEWEST_TURNS or self._measured % 16 == 0:
            place = (95 * len(self._times)) // 100
            whole, per_step = (sorted(times)[place] for times in zip(*self._times, strict=True))
            self._slow = (whole, per_step)

    def limit(self, steps: int) -> float:
        """Seconds that a turn of so many steps may take; longer turns than those measured get more."""
        if self._slow is None:
            return self.first_s
        whole, per_step = self._slow
        return 3.0 * max(whole, per_step * steps) + HEARTBEAT_S

    def add(self, command: Train, now: float) -> None:
        """This turn begins now."""
        limit = now + self.limit(command.all_steps) * self._patience.get(command.worker, 1.0)
        heapq.heappush(self._pending, (limit, command.worker, command.incarnation, command.ticket))

    def grant(self, turns: list[TurnUnderWay], now: float) -> None:
        """Give turns that lost time through no fault of theirs their whole time anew."""
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
        """Worker and incarnation of the turns whose time is over; each is told once."""
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
    """The turns that were issued and not settled, each worker's in their order; only the first has a deadline."""

    outstanding: Callable[[int, int], bool]
    deadlines: TurnDeadlines
    _turns: dict[int, list[TurnUnderWay]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._turns)

    def issue(self, command: Train, now: float) -> None:
        """This turn was issued now."""
        turns = self._turns.setdefault(command.worker, [])
        turns.append(TurnUnderWay(command, now))
        if len(turns) == 1:
            self.deadlines.add(command, now)

    def measure(self, worker: int, ticket: int, now: float) -> None:
        """Take the time of this turn, which has ended now; when one began that overtook another is not known."""
        turn = self.first(worker)
        if turn.command.ticket == ticket:
            self.deadlines.measure(turn, now)

    def first(self, worker: int) -> TurnUnderWay:
        """The turn that this worker is at."""
        return self._turns[worker][0]

    def settle(self, worker: int, now: float) -> list[Train]:
        """Forget the turns of this worker whose results are not waited for any more; they are returned."""
        turns = self._turns.get(worker, [])
        over = [one for one in turns if not self.outstanding(worker, one.command.ticket)]
        left = [one for one in turns if one not in over]
        if not left:
            self._turns.pop(worker, None)
            return [one.command for one in over]
        if left[0] is not turns[0]:
            left[0] = TurnUnderWay(left[0].command, now)
            self.deadlines.add(left[0].command, now)
        self._turns[worker] = left
        return [one.command for one in over]

    def forget_all(self) -> list[Train]:
        """The run is over: all turns that were still under way."""
        commands = [turn.command for turns in self._turns.values() for turn in turns]
        self._turns.clear()
        return commands

    def grant(self, now: float) -> None:
        """Give all their whole time anew, which they lost through no fault of theirs."""
        self.deadlines.grant([turns[0] for turns in self._turns.values()], now)
