"""Hybrid SGD: phases, each a mode with its options and an end, repeated until the end of the run.

A switch waits until every turn is settled by the old phase's rule; then all workers join the new phase at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from speedo.messages import NOTHING, Decision, Result
from speedo.sgd_modes.base import Length, Strategy
from speedo.sgd_modes.phases import Phase
from speedo.sgd_modes.rules import MergeRule


@dataclass
class Hybrid:
    """Runs its phases in turn; at a switch no worker trains. `reached`: a test has fulfilled the phase's `until`."""

    phases: Sequence[Phase]
    name: str = "hybrid"
    index: int = 0
    merged: int = 0
    inner: Strategy = field(init=False)
    reached: bool = False
    live: set[int] = field(default_factory=set)
    training: set[int] = field(default_factory=set)
    pending: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inner = self.phase.start()

    @property
    def rule(self) -> MergeRule:
        return self.inner.rule

    @property
    def local_steps(self) -> Length:
        return self.inner.local_steps

    @property
    def phase(self) -> Phase:
        return self.phases[self.index]

    def on_join(self, workers: tuple[int, ...]) -> Decision:
        self.live.update(workers)
        return self._settle(NOTHING if self._draining else self.inner.on_join(workers))

    def on_result(self, result: Result) -> Decision:
        self.training.discard(result.worker)
        self.pending[result.worker] = result.samples
        return self._settle(self.inner.on_result(result))

    def on_leave(self, worker: int) -> Decision:
        self.live.discard(worker)
        self.training.discard(worker)
        return self._settle(self.inner.on_leave(worker))

    def on_test(self, metrics: Mapping[str, float], samples_since: int) -> Decision:
        until, is_own = self.phase.until, samples_since < self.merged  # some of its work is tested
        self.reached |= is_own and until is not None and until.holds(metrics)
        return self._settle(NOTHING)

    @property
    def _draining(self) -> bool:
        return self.reached or 0 < self.phase.samples <= self.merged

    def _settle(self, decision: Decision) -> Decision:
        """Count what is merged; at the end of a phase hold all workers until every turn is settled, then switch."""
        self.merged += sum(self.pending.pop(worker, 0) for worker in decision.merge)
        for worker in decision.discard:
            self.pending.pop(worker, None)
        train = () if self._draining else decision.train
        if self._draining and not self.training:
            self.index, self.merged = (self.index + 1) % len(self.phases), 0
            self.inner, self.reached = self.phase.start(), False
            train = self.inner.on_join(tuple(sorted(self.live))).train
        self.training.update(train)
        return Decision(decision.discard, decision.merge, train, decision.why)
