"""Partially synchronous SGD (bounded staleness): no worker is more than a bound ahead of the slowest.

Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013:
"the fastest and slowest workers must be <= s clocks apart".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from speedo.messages import Decision, Result
from speedo.sgd_modes.base import Length, Mode, Strategy
from speedo.sgd_modes.catch_up import CATCH_UP, CatchUp
from speedo.sgd_modes.rules import AddDelta, Elastic, MergeRule, ServerGradient
from speedo.sgd_modes.turn_counts import TurnCounts
from speedo.system.bounds import LARGEST_INT32, Option, Whole

MAX_ADVANCE = Option(
    "Turns that a worker may be ahead of the slowest.",
    Whole(1, LARGEST_INT32, "every worker would wait forever; "), source="the example in modes.md",
)  # fmt: skip


@dataclass
class Partial:
    """Merge at once; a worker that is `max_advance` turns ahead of the slowest is held until that has caught up."""

    rule: MergeRule
    max_advance: int = 2
    local_steps: Length = 1
    name: str = "partial"
    counts: TurnCounts = field(default_factory=TurnCounts)
    held: set[int] = field(default_factory=set)
    slowest: int = 0

    def on_join(self, workers: tuple[int, ...]) -> Decision:
        """New workers count as level with the fastest and train at once."""
        fastest = self.counts.most
        for worker in workers:
            self.counts.move(worker, fastest)
        return Decision(train=workers)

    def on_result(self, result: Result) -> Decision:
        """Merge it and hold its worker, until it is not too far ahead."""
        worker = result.worker
        self.counts.add(worker)
        self.held.add(worker)
        train = self._release(first=worker)
        return Decision(merge=(worker,), train=train, may_wait=train == (worker,))

    def on_leave(self, worker: int) -> Decision:
        """It does not hold back other workers any more."""
        self.counts.move(worker, None)
        self.held.discard(worker)
        return Decision(train=self._release())

    def _release(self, first: int = -1) -> tuple[int, ...]:
        """The held workers that are no longer too far ahead, the one that just reported first."""
        if not self.held:
            return ()
        before, self.slowest = self.slowest, self.counts.fewest
        waiting = self.held & {first} if self.slowest == before else self.held
        free = [w for w in waiting if self.counts.turns[w] - self.slowest < self.max_advance]
        self.held.difference_update(free)
        return tuple(sorted(free, key=lambda worker: (worker != first, worker)))


def partial(
    rule: MergeRule,
    max_advance: Annotated[int, MAX_ADVANCE] = 2,
    catch_up: Annotated[bool, CATCH_UP] = False,
    **rest: Any,
) -> Strategy:
    """The schedule that was asked for."""
    return (CatchUp if catch_up else Partial)(rule, max_advance, **rest)


MODE = Mode("partial", partial, (AddDelta, Elastic, ServerGradient), "Ho et al.", 2013)
