"""Synchronous SGD: a round ends when every worker that trains in it has reported or left.

The sample-weighted mean of the deltas is merged once per round. With the solver's batch split over the
workers this is the step that one solver would have made with the whole batch (Zinkevich et al.,
Parallelized Stochastic Gradient Descent, NIPS 2010, averaged every step; Chen et al., Revisiting
Distributed Synchronous SGD, 2016).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from speedo.messages import NOTHING, Decision, Result
from speedo.sgd_modes.rules import MergeRule


@dataclass
class Synchronous:
    """Hold results until the last one waited for; then merge once and let everybody train."""

    rule: MergeRule
    local_steps: int = 1
    name: str = "sync"
    live: set[int] = field(default_factory=set)
    awaited: set[int] = field(default_factory=set)
    delivered: list[int] = field(default_factory=list)

    def on_join(self, workers: tuple[int, ...]) -> Decision:
        """In from the next round, which is now if none is under way."""
        self.live.update(workers)
        return NOTHING if self.awaited else self._close_round()

    def on_result(self, result: Result) -> Decision:
        self.awaited.discard(result.worker)
        self.delivered.append(result.worker)
        return NOTHING if self.awaited else self._close_round()

    def on_leave(self, worker: int) -> Decision:
        """Stop waiting for it; what it already delivered still counts."""
        self.live.discard(worker)
        if worker not in self.awaited:
            return NOTHING
        self.awaited.discard(worker)
        return NOTHING if self.awaited else self._close_round()

    def _close_round(self) -> Decision:
        merge, self.delivered = tuple(sorted(self.delivered)), []
        self.awaited = set(self.live)
        return Decision(merge=merge, train=tuple(sorted(self.live)))
