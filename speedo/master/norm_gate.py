"""Refuses results that are finite but out of proportion."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from speedo.errors import NOT_FINITE
from speedo.messages import Kind, Trained

LARGEST_RATIO: Final = (
    1_000.0  # a step of a learning rate policy is 10 or 100; a flipped exponent bit far more
)
REMEMBERED: Final = 100
FEWEST: Final = 10  # accepted norms before there is a judgement


@dataclass
class NormGate:
    """Refuses vectors that are finite but out of proportion: compares each L2 norm with the running median of the
    accepted ones of its kind.

    `check` remembers nothing: a refused vector must not make the next one look usual.
    """

    _accepted: dict[Kind, deque[float]] = field(default_factory=dict)

    def judge(self, kind: Kind, event: Trained, squared_norm: float) -> str | None:
        """Why a result is refused; else None, and it is among the accepted from now on."""
        lost = event.has_loss and not math.isfinite(event.loss)
        if lost or not math.isfinite(squared_norm):
            return NOT_FINITE
        absurd = self.check(kind, squared_norm)
        if absurd is None:
            self.accept(kind, squared_norm)
        return absurd

    def check(self, kind: Kind, squared_norm: float) -> str | None:
        """Why a vector of this (finite) squared norm is refused; None if it is not."""
        known = self._accepted.get(kind, ())
        if len(known) < FEWEST:
            return None
        norm = math.sqrt(squared_norm)
        if norm <= LARGEST_RATIO * min(known):
            return None  # the median, which takes longer to find, is not less
        usual = statistics.median(known)
        if usual == 0.0 or norm <= LARGEST_RATIO * usual:
            return None
        return (
            f"its norm is {norm:.3g}, more than {LARGEST_RATIO:,.0f} times the {usual:.3g} that is usual here: "
            "training diverges there, or the worker computes nonsense; lower the learning rate or the momentum, or "
            "look at its node"
        )

    def accept(self, kind: Kind, squared_norm: float) -> None:
        """A vector of this squared norm goes into the center; the last `REMEMBERED` say what is usual."""
        known = self._accepted.setdefault(kind, deque(maxlen=REMEMBERED))
        known.append(math.sqrt(squared_norm))
