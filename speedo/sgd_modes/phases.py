"""A phase of mode hybrid, and what the coordinator asks a strategy that has phases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from speedo.messages import NO_TUNING, Decision, Tuning
from speedo.sgd_modes.base import Strategy
from speedo.sgd_modes.conditions import Condition


@dataclass(frozen=True)
class Phase:
    """A mode until `samples` are merged (0: no such end) or a test fulfils `until`, whichever comes first.

    `start` makes a new strategy each time the phase begins. `tuning` are its solver values; `test_interval` None is
    that of the run.
    """

    start: Callable[[], Strategy]
    samples: int = 0
    until: Condition | None = None
    tuning: Tuning = NO_TUNING
    test_interval: int | None = None


@runtime_checkable
class Phased(Protocol):
    """A strategy whose phases have solver values, test intervals and ends of their own."""

    index: int
    merged: int

    @property
    def phase(self) -> Phase:
        """The present one, the `index`-th, in which `merged` samples are merged so far."""
        ...

    def on_test(self, metrics: Mapping[str, float], samples_since: int) -> Decision:
        """The outputs of a version; `samples_since` were merged after it."""
        ...
