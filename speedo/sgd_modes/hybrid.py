"""Hybrid SGD: phases, each a mode with its options and a length, repeated until the end.

A switch waits until every turn of the old phase is settled by the old phase's rule, so that no result is merged by
the wrong rule. Then all workers join the new phase at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from speedo.messages import Decision, Result
from speedo.sgd_modes.base import Strategy
from speedo.sgd_modes.rules import MergeRule


@dataclass(frozen=True)
class Phase:
    """A mode for `samples` merged samples; `start` makes a new strategy each time the phase begins."""

    start: Callable[[], Strategy]
    samples: int


@dataclass
class Hybrid:
    """Runs its phases in turn; at a switch no worker trains."""

    phases: Sequence[Phase]
    name: str = "hybrid"
    index: int = 0
    merged: int = 0
    inner: Strategy = field(init=False)
    live: set[int] = field(default_factory=set)
    training: set[int] = field(default_factory=set)
    pending: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inner = self.phases[self.index].start()

    @property
    def rule(self) -> MergeRule:
        return self.inner.rule

    @property
    def local_steps(self) -> int:
        return self.inner.local_steps

    def on_join(self, workers: tuple[int, ...]) -> Decision:
        self.live.update(workers)
        return self._settle(Decision() if self._draining else self.inner.on_join(workers))

    def on_result(self, result: Result) -> Decision:
        self.training.discard(result.worker)
        self.pending[result.worker] = result.samples
        return self._settle(self.inner.on_result(result))

    def on_leave(self, worker: int) -> Decision:
        self.live.discard(worker)
        self.training.discard(worker)
        return self._settle(self.inner.on_leave(worker))

    @property
    def _draining(self) -> bool:
        return self.merged >= self.phases[self.index].samples

    def _settle(self, decision: Decision) -> Decision:
        """Count what is merged; at the end of a phase hold all workers until every turn is settled, then switch."""
        self.merged += sum(self.pending.pop(worker, 0) for worker in decision.merge)
        for worker in decision.discard:
            self.pending.pop(worker, None)
        train = decision.train
        if self._draining:
            train = ()
            if not self.training:
                self.index, self.merged = (self.index + 1) % len(self.phases), 0
                self.inner = self.phases[self.index].start()
                train = self.inner.on_join(tuple(sorted(self.live))).train
        self.training.update(train)
        return Decision(decision.discard, decision.merge, train, decision.why)
