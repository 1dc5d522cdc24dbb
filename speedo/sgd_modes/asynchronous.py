"""Asynchronous SGD: every result is merged when it arrives, and no worker waits.

Dean et al., Large Scale Distributed Deep Networks, NIPS 2012, section 4.1 (Downpour SGD).
"""

from __future__ import annotations

from dataclasses import dataclass

from speedo.messages import NOTHING, Decision, Result
from speedo.sgd_modes.base import Length, Mode
from speedo.sgd_modes.rules import AddDelta, MergeRule, ServerGradient


@dataclass
class Asynchronous:
    """Merge a worker's result at once and let it train again. With the elastic rule this is EASGD's schedule."""

    rule: MergeRule
    local_steps: Length = 1
    name: str = "async"

    def on_join(self, workers: tuple[int, ...]) -> Decision:
        return Decision(train=workers)

    def on_result(self, result: Result) -> Decision:
        return Decision(merge=(result.worker,), train=(result.worker,), may_wait=True)

    def on_leave(self, worker: int) -> Decision:
        return NOTHING


MODE = Mode("async", Asynchronous, (AddDelta, ServerGradient), "Dean et al.", 2012, overlaps=True)
