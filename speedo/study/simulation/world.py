"""What is made up about a simulated cluster: its speeds, and what goes wrong in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from speedo.exchange.codecs import NO_COMPRESSION, Compression


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
    """Speeds: a turn lasts `step_s` seconds times its steps times the worker's factor, plus jitter.

    The master takes its events together that come within `gather_s` seconds at most after the first of them: within a
    part of that which is drawn each time. It needs `decide_s` seconds for each: more than the workers take between two,
    and its queue is never empty.
    """

    step_s: float = 0.1
    latency_s: float = 0.001
    jitter: float = 0.1
    slowness: Callable[[int], float] = lambda worker: 1.0
    faults: Faults = field(default_factory=Faults)
    compression: Compression = NO_COMPRESSION
    gather_s: float = 0.0
    decide_s: float = 0.0
