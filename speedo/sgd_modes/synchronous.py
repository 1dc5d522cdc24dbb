"""Synchronous SGD: a round ends when every worker that it waits for has reported or left.

The sample-weighted mean of the deltas is merged once per round. If the solver's batch is split over the workers, this
is the step that one solver would make with the whole batch (Zinkevich et al., Parallelized Stochastic Gradient
Descent, NIPS 2010, averaged every step). With b backup workers a round merges the first n - b results, and later
results of that round are discarded (Chen et al., Revisiting Distributed Synchronous SGD, 2016, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from speedo.messages import NOTHING, Decision, Result
from speedo.sgd_modes.base import Length, Mode
from speedo.sgd_modes.rules import AverageDeltas, MergeRule, ServerGradient
from speedo.system.bounds import LARGEST_COUNT, Option, Whole

BACKUP_WORKERS = Option(
    "Close a round when all but N workers have reported.", Whole(0, LARGEST_COUNT),
    source="every result counts", below_workers="a round would wait for no worker")  # fmt: skip


@dataclass
class Synchronous:
    """Hold results until all but `backup_workers` of the round have reported; then merge once, and let all train.

    `awaited` have not reported for the round; the `late` ones among them still have a turn of a round that was closed.
    """

    rule: MergeRule
    local_steps: Length = 1
    backup_workers: Annotated[int, BACKUP_WORKERS] = 0
    name: str = "sync"
    live: set[int] = field(default_factory=set)
    awaited: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)
    delivered: list[int] = field(default_factory=list)

    def on_join(self, workers: tuple[int, ...]) -> Decision:
        """It takes part from the next round, which begins now if no worker trains."""
        self.live.update(workers)
        return NOTHING if self.awaited - self.late else self._close_round()

    def on_result(self, result: Result) -> Decision:
        """It counts only for the round in which its turn began."""
        worker = result.worker
        if worker in self.late:
            self.late.discard(worker)
            return Decision((worker,), train=(worker,), why="its round was closed without it")
        self.awaited.discard(worker)
        self.delivered.append(worker)
        return self._close_when_enough()

    def on_leave(self, worker: int) -> Decision:
        """Stop waiting for it; what it already sent still counts."""
        self.live.discard(worker)
        self.late.discard(worker)
        if worker not in self.awaited:
            return NOTHING
        self.awaited.discard(worker)
        return self._close_when_enough()

    def _close_when_enough(self) -> Decision:
        """Close the round if one has reported and at most `backup_workers` are missing, or all awaited are `late`."""
        missing = len(self.awaited)
        if self.awaited - self.late and (missing > self.backup_workers or not self.delivered):
            return NOTHING
        return self._close_round()

    def _close_round(self) -> Decision:
        merge, self.delivered = tuple(sorted(self.delivered)), []
        self.late, self.awaited = self.awaited, set(self.live)
        return Decision(merge=merge, train=tuple(sorted(self.live - self.late)))


MODE = Mode(
    "sync", Synchronous, (AverageDeltas, ServerGradient), "Zinkevich et al.", 2010,
    rounds=True, spare="backup_workers", sums=True,
)  # fmt: skip
