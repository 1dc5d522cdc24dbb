"""The original SpeeDO's rule of `partial`: once a worker is too far ahead, all stop, and all start together again.

Zheng et al., SpeeDO: Parallelizing Stochastic Gradient Descent for Deep Convolutional Neural Network, LearningSys at
NIPS 2015, as its code had it (`--maxAdvance`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from speedo.messages import NOTHING, Decision, Result
from speedo.sgd_modes.base import Length
from speedo.sgd_modes.rules import MergeRule
from speedo.sgd_modes.turn_counts import TurnCounts
from speedo.system.bounds import Option

CATCH_UP = Option(
    "When a worker is --max-advance turns ahead, the others finish their turns; then all start together.",
    usual="only the worker that is ahead waits", source="as in Ho et al. 2013; the original SpeeDO caught up",
)  # fmt: skip


@dataclass
class CatchUp:
    """Merge at once. When a worker is `max_advance` turns ahead of the slowest, the others finish their turns and stop.

    Then all counts are one, and all train. `owing` are those that still have to finish; outside of a catch-up nobody.
    """

    rule: MergeRule
    max_advance: int = 2
    local_steps: Length = 1
    name: str = "partial"
    counts: TurnCounts = field(default_factory=TurnCounts)
    owing: set[int] = field(default_factory=set)

    def on_join(self, workers: tuple[int, ...]) -> Decision:
        """New workers count as level with the fastest; during a catch-up they start with all."""
        fastest = max(self.counts.most, 1)
        for worker in workers:
            self.counts.move(worker, fastest)
        return NOTHING if self.owing else Decision(train=workers)

    def on_result(self, result: Result) -> Decision:
        worker = result.worker
        if self.owing:
            return Decision(merge=(worker,), train=self._finished(worker))
        self.counts.add(worker)
        if self.counts.lead(worker) < self.max_advance:
            return Decision(merge=(worker,), train=(worker,), may_wait=True)
        self.owing = self.counts.turns.keys() - {worker}
        return Decision(merge=(worker,))

    def on_leave(self, worker: int) -> Decision:
        """Nobody waits for it."""
        self.counts.move(worker, None)
        return Decision(train=self._finished(worker)) if worker in self.owing else NOTHING

    def _finished(self, worker: int) -> tuple[int, ...]:
        """It owes nothing any more; those that start, which are all once it was the last."""
        self.owing.discard(worker)
        if self.owing:
            return ()
        workers = tuple(sorted(self.counts.turns))
        for one in workers:
            self.counts.move(one, 1)
        return workers
