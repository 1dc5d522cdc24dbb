"""What is made up about a simulated cluster: its speeds, and what goes wrong in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities per turn of what goes wrong; who dies comes back after `return_s`, if given.

    `die` splits evenly over dying while computing and after the push but before the message; in
    both cases the death is noticed `notice_s` later. `late` delivers a result only after its worker
    was given up. `fail` is an error in the turn, which the worker reports.
    """

    die: float = 0.0
    lose: float = 0.0
    repeat: float = 0.0
    late: float = 0.0
    poison: float = 0.0
    leave: float = 0.0
    fail: float = 0.0
    notice_s: float = 1.0
    return_s: float | None = None


@dataclass(frozen=True, slots=True)
class World:
    """Speeds: a turn lasts `step_s` seconds times its steps times the worker's factor, plus jitter."""

    step_s: float = 0.1
    latency_s: float = 0.001
    jitter: float = 0.1
    slowness: Callable[[int], float] = lambda worker: 1.0
    faults: Faults = field(default_factory=Faults)
