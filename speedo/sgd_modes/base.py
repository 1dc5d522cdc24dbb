"""The seam to the SGD modes: a strategy decides who is merged and who trains next.

A strategy sees worker ids, sample counts and staleness; never arrays, clocks or the network. It owns the
merge rule that its decisions ask for. Every worker that it lets train answers once, by a result or by
leaving; the coordinator sees to that.
"""

from __future__ import annotations

from typing import Protocol

from speedo.messages import Decision, Result
from speedo.sgd_modes.rules import MergeRule


class Strategy(Protocol):
    """One SGD mode."""

    @property
    def name(self) -> str:
        """The mode's name as `--mode` takes it."""
        ...

    @property
    def rule(self) -> MergeRule:
        """The arithmetic of the next merge."""
        ...

    @property
    def local_steps(self) -> int:
        """Solver steps per turn (tau)."""
        ...

    def on_join(self, workers: tuple[int, ...]) -> Decision:
        """These workers are there and idle: at the start all at once, later usually one."""
        ...

    def on_result(self, result: Result) -> Decision:
        """A worker that was told to train has finished; it is idle now."""
        ...

    def on_leave(self, worker: int) -> Decision:
        """This worker is gone; a result of its that was not merged yet may still be."""
        ...
