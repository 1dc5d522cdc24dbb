"""A phase of mode hybrid: a mode with its end, its solver values and its test interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from speedo.messages import NO_TUNING, Tuning
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
