"""Synchronous SGD: a round ends when every worker that it waits for has reported or left.

The sample-weighted mean of the deltas is merged once per round. With the solver's batch split over the
workers this is the step that one solver would have made with the whole batch (Zinkevich et al.,
Parallelized Stochastic Gradient Descent, NIPS 2010, averaged every step). With b backup workers a round
merges the first n - b results, and what stragglers bring afterwards is discarded (Chen et al., Revisiting
Distributed Synchronous SGD, 2016, section 4: N + b workers, of which the first N count).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from speedo.messages import NOTHING, Decision, Result
from speedo.sgd_modes.rules import MergeRule


@dataclass
class Synchronous:
    """Hold results until all but `backup` of the round have reported; merge once, let everybody train.

    `awaited` are those of the round who have not reported for it; some of them are still `late` with a
    turn of a round that was closed without them, and train for this one once that is over.
    """

    rule: MergeRule
    local_steps: int = 1
    backup: int = 0
    name: str = "sync"
    live: set[int] = field(default_factory=set)
    awaited: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)
    delivered: list[int] = field(default_factory=list)

    def on_join(self, workers: tuple[int, ...]) -> Decision:
        """In from the next round, which is now if nobody trains for one."""
        self.live.update(workers)
        return NOTHING if self.awaited - self.late else self._close_round()

    def on_result(self, result: Result) -> Decision:
        """It counts for the round it was begun in, and for no other."""
        worker = result.worker
        if worker in self.late:
            self.late.discard(worker)
            return Decision((worker,), train=(worker,), why="its round was closed without it")
        self.awaited.discard(worker)
        self.delivered.append(worker)
        return self._close_when_enough()

    def on_leave(self, worker: int) -> Decision:
        """Stop waiting for it; what it already delivered still counts."""
        self.live.discard(worker)
        self.late.discard(worker)
        if worker not in self.awaited:
            return NOTHING
        self.awaited.discard(worker)
        return self._close_when_enough()

    def _close_when_enough(self) -> Decision:
        """At most `backup` are missing and somebody delivered, or nobody is left who could."""
        missing = len(self.awaited)
        if self.awaited - self.late and (missing > self.backup or not self.delivered):
            return NOTHING
        return self._close_round()

    def _close_round(self) -> Decision:
        merge, self.delivered = tuple(sorted(self.delivered)), []
        self.late = self.awaited
        self.awaited = set(self.live)
        return Decision(merge=merge, train=tuple(sorted(self.live - self.late)))
