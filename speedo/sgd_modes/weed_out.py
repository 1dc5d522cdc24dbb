"""Weed-out SGD: asynchronous, but a result that is too stale is discarded.

SpeeDO (Zheng et al., SpeeDO: Parallelizing Stochastic Gradient Descent for Deep Convolutional Neural
Network, LearningSys at NIPS 2015): weed out the delayed deltas.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from speedo.messages import NOTHING, Decision, Result
from speedo.sgd_modes.base import Length, Mode
from speedo.sgd_modes.rules import AddDelta, Elastic, MergeRule, ServerGradient
from speedo.system.bounds import LARGEST_INT32, Option, Whole

WINDOW = Option(
    "Discard results with a staleness of N or more; an N below the number of workers counts as that number.",
    Whole(1, LARGEST_INT32, "every result would be discarded; "), usual="2 * workers",
    source="measured: with n, equal workers lose 23 % of their results to ordinary jitter",
)  # fmt: skip


@dataclass
class WeedOut:
    """Discard a result with staleness >= max(window, n) for n live workers; its worker fetches the center again.

    `window` None means 2 n: a result is that stale if its worker is half as fast as the others.
    """

    rule: MergeRule
    window: Annotated[int | None, WINDOW] = None
    local_steps: Length = 1
    name: str = "weed-out"
    live: set[int] = field(default_factory=set)

    def on_join(self, workers: tuple[int, ...]) -> Decision:
        self.live.update(workers)
        return Decision(train=workers)

    def on_result(self, result: Result) -> Decision:
        worker = (result.worker,)
        if result.staleness >= max(self.window or 2 * len(self.live), len(self.live)):
            why = f"staleness {result.staleness} is too high for mode {self.name}"
            return Decision(discard=worker, train=worker, why=why, may_wait=True)
        return Decision(merge=worker, train=worker, may_wait=True)

    def on_leave(self, worker: int) -> Decision:
        self.live.discard(worker)
        return NOTHING


MODE = Mode("weed-out", WeedOut, (AddDelta, Elastic, ServerGradient), "Zheng et al.", 2015)
