"""Partially synchronous SGD (bounded staleness): nobody runs ahead of the slowest by more than a bound.

Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013:
"the fastest and slowest workers must be <= s clocks apart".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from speedo.messages import Decision, Result
from speedo.sgd_modes.rules import MergeRule


@dataclass
class Partial:
    """Merge now; w trains on unless it is `max_advance` turns ahead of the slowest, then it is held."""

    rule: MergeRule
    max_advance: int
    local_steps: int = 1
    name: str = "partial"
    turns: dict[int, int] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)

    def on_join(self, workers: tuple[int, ...]) -> Decision:
        """Newcomers count as level with the fastest and train at once."""
        fastest = max(self.turns.values(), default=0)
        self.turns.update(dict.fromkeys(workers, fastest))
        return Decision(train=workers)

    def on_result(self, result: Result) -> Decision:
        worker = result.worker
        self.turns[worker] += 1
        self.held.add(worker)
        return Decision(merge=(worker,), train=self._release(first=worker))

    def on_leave(self, worker: int) -> Decision:
        """It no longer holds anybody back."""
        self.turns.pop(worker, None)
        self.held.discard(worker)
        return Decision(train=self._release())

    def _release(self, first: int = -1) -> tuple[int, ...]:
        """Those held who are no longer too far ahead, the one who just reported before the others."""
        if not self.held:
            return ()
        slowest = min(self.turns.values())
        free = [w for w in self.held if self.turns[w] - slowest < self.max_advance]
        self.held.difference_update(free)
        return tuple(sorted(free, key=lambda worker: (worker != first, worker)))
