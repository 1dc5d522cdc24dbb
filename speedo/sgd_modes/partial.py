"""Partially synchronous SGD (bounded staleness): no worker is more than a bound ahead of the slowest.

Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013:
"the fastest and slowest workers must be <= s clocks apart".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

from speedo.bounds import LARGEST_INT32, Option, Whole
from speedo.messages import Decision, Result
from speedo.sgd_modes.base import Length, Mode
from speedo.sgd_modes.rules import AddDelta, Elastic, MergeRule, ServerGradient

MAX_ADVANCE = Option(
    "Turns that a worker may be ahead of the slowest.",
    Whole(1, LARGEST_INT32, "every worker would wait forever; "), source="the example in modes.md",
)  # fmt: skip


@dataclass
class Partial:
    """Merge at once; a worker that is `max_advance` turns ahead of the slowest is held until that has caught up."""

    rule: MergeRule
    max_advance: Annotated[int, MAX_ADVANCE] = 2
    local_steps: Length = 1
    name: str = "partial"
    turns: dict[int, int] = field(default_factory=dict)
    at: Counter[int] = field(default_factory=Counter)
    held: set[int] = field(default_factory=set)
    slowest: int = 0

    def on_join(self, workers: tuple[int, ...]) -> Decision:
        """New workers count as level with the fastest and train at once."""
        fastest = max(self.at, default=0)
        for worker in workers:
            self._move(worker, fastest)
        return Decision(train=workers)

    def on_result(self, result: Result) -> Decision:
        """Merge it and hold its worker, until it is not too far ahead."""
        worker = result.worker
        self._move(worker, self.turns[worker] + 1)
        self.held.add(worker)
        train = self._release(first=worker)
        return Decision(merge=(worker,), train=train, may_wait=train == (worker,))

    def on_leave(self, worker: int) -> Decision:
        """It does not hold back other workers any more."""
        self._move(worker, None)
        self.held.discard(worker)
        return Decision(train=self._release())

    def _move(self, worker: int, turns: int | None) -> None:
        """Set a worker's number of turns; None removes it. `at` counts the workers at each number."""
        before = self.turns.pop(worker, None)
        if before is not None:
            self.at[before] -= 1
            if not self.at[before]:
                del self.at[before]
        if turns is not None:
            self.turns[worker] = turns
            self.at[turns] += 1

    def _release(self, first: int = -1) -> tuple[int, ...]:
        """The held workers that are no longer too far ahead, the one that just reported first."""
        if not self.held:
            return ()
        before, self.slowest = self.slowest, min(self.at)
        waiting = self.held & {first} if self.slowest == before else self.held
        free = [w for w in waiting if self.turns[w] - self.slowest < self.max_advance]
        self.held.difference_update(free)
        return tuple(sorted(free, key=lambda worker: (worker != first, worker)))


MODE = Mode("partial", Partial, (AddDelta, Elastic, ServerGradient), "Ho et al.", 2013)
