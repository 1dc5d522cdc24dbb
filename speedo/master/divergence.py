"""Detects divergence: of a result by the norm of its vector, of the run by the losses.

A result is refused if it is not finite, or if its L2 norm is out of proportion to the median of the norms that were
accepted before.

Losses are smoothed by medians, because single batches are noisy and heavy-tailed. A run has diverged if for
`SUSTAINED` consecutive points the median of the last `WINDOW` points was above the initial and the best median, times
the factors below. If the loss explodes before the initial median can be measured, the run has diverged if no point
came close to the very first again. No threshold is absolute, so the rule works for any loss, or sum of losses, that
is not negative.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from speedo.errors import NOT_FINITE, TrainingStopped
from speedo.exchange.vector import Vector, squared_norm
from speedo.messages import Kind, Merge, Trained
from speedo.sgd_modes.registry import PLAIN, has_rounds, mode_named

WINDOW: Final = 50
SUSTAINED: Final = 100  # points; a bump of a rate's warm-up is shorter
ABOVE_BEST: Final = 3.0
ABOVE_START: Final = 2.0
FORGOTTEN: Final = 10.0  # times the best, and back where it began: nothing that was learnt is left
# Times the very first results: it diverged before the start could be measured.
EXPLODED: Final = 10.0
VERY_FIRST: Final = 3
BEGINNING: Final = 20
RESULTS_OF_EACH: Final = 4  # with many workers a point is a mean over a quarter of them

# Of norms: a step of a learning rate policy is 10 or 100, a flipped exponent bit far more.
LARGEST_RATIO: Final = 1_000.0
REMEMBERED: Final = 100
FEWEST: Final = 10  # accepted norms before there is a judgement


@dataclass
class DivergenceWatch:
    """The center asks it for each result; the driver tells it each merge, and stops the run once there is a `reason`.

    `workers` is how many train, `payload` what they send. A `script` has an optimizer of its own, which options do not
    reach. `stops`: whether the run is to end when it has diverged.
    """

    mode: str = ""
    workers: int = 1
    payload: Kind = Kind.DELTA
    script: bool = False
    stops: bool = False
    reason: str = ""  # why the run should stop
    _norms: dict[Kind, deque[float]] = field(default_factory=dict)  # accepted
    _beginning: list[float] = field(default_factory=list)
    _window: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _start: float = 0.0
    _very_start: float = 0.0
    _best: float = 0.0
    _points_above: int = 0
    _sum: float = 0.0
    _samples: int = 0
    _results: int = 0
    _silent: bool = False

    def refusal(self, kind: Kind, event: Trained, squared_norm: float) -> str | None:
        """Why a result is refused; else None, and its norm is among the accepted from now on.

        The norm of a refused one is not remembered: it must not make the next one look usual.
        """
        lost = event.has_loss and not math.isfinite(event.loss)
        if lost or not math.isfinite(squared_norm):
            return NOT_FINITE
        known = self._norms.setdefault(kind, deque(maxlen=REMEMBERED))
        norm = math.sqrt(squared_norm)
        # The median, which takes longer to find, is not less than the minimum.
        if len(known) >= FEWEST and norm > LARGEST_RATIO * min(known):
            usual = statistics.median(known)
            if usual > 0.0 and norm > LARGEST_RATIO * usual:
                return (
                    f"its norm is {norm:.3g}, more than {LARGEST_RATIO:,.0f} times the {usual:.3g} that is usual "
                    "here: training diverges there, or the worker computes nonsense; lower the learning rate or the "
                    "momentum, or look at its node"
                )
        known.append(norm)
        return None

    def merged(self, merge: Merge) -> None:
        """Take the losses of these results."""
        for part in merge.parts:
            losses = part.losses or (part.loss,)
            for loss in losses:
                reason = self.saw(loss, part.samples // len(losses))
                if reason is not None and self.stops:
                    self.reason = self.reason or reason

    def saw(self, loss: float, samples: int) -> str | None:
        """A result of this many samples was merged; returns why the run should stop, or None.

        A negative loss gives no scale to compare with: from the first one on the watch reports nothing.
        """
        self._silent |= loss < 0.0
        if self._silent or not math.isfinite(loss):
            return None
        self._sum += loss * samples
        self._samples += samples
        self._results += 1
        if self._results * RESULTS_OF_EACH < self.workers or not self._samples:
            return None
        point = self._sum / self._samples
        self._sum, self._samples, self._results = 0.0, 0, 0
        return self._add(point)

    def loss_at_end(self) -> float | None:
        """The median of the last points; None where there are too few, or losses without a scale."""
        if self._silent or len(self._window) < BEGINNING:
            return None
        return statistics.median(self._window)

    def _add(self, point: float) -> str | None:
        if len(self._beginning) < BEGINNING:
            self._beginning.append(point)
            self._start = statistics.fmean(self._beginning)
            self._very_start = statistics.median(self._beginning[:VERY_FIRST])
            self._best = self._start
        self._window.append(point)
        if len(self._window) < WINDOW:
            return None
        now = statistics.median(self._window)
        self._best = min(self._best, now)
        self._points_above = self._points_above + 1 if self._is_high(now) else 0
        return self._advice(now) if self._points_above >= SUSTAINED else None

    def _is_high(self, now: float) -> bool:
        if self._very_start <= 0.0:
            return False
        risen = now > max(ABOVE_BEST * self._best, ABOVE_START * self._start)
        forgotten = now > max(FORGOTTEN * self._best, 0.9 * self._start)
        exploded = (
            now > EXPLODED * self._very_start and min(self._window) > ABOVE_BEST * self._very_start
        )
        return risen or forgotten or exploded

    def _advice(self, now: float) -> str:
        began = min(self._start, self._very_start)
        return (
            f"the loss has diverged: it is {now:.3g}, was {min(self._best, began):.3g} at best and began at "
            f"{began:.3g}; {self._remedy()}"
        )

    def _remedy(self) -> str:
        own = "the learning rate in the script" if self.script else ""
        if mode_named(self.mode) is None:
            return f"lower {own or '--lr'}, or delta_scale or moving_rate of its phases"
        if self.payload is Kind.WEIGHTS:
            return f"lower {own or '--lr, its scale'} or --moving-rate"
        if has_rounds(self.mode) or self.workers == 1 or self.payload is Kind.GRADIENT:
            return f"lower {own or '--lr'}"
        rate = own or "--lr or --momentum"
        return f"lower --delta-scale, {rate}, or use --mode {next(filter(has_rounds, PLAIN))}"


def check_update(center: Vector, iteration: int) -> None:
    """Raises `TrainingStopped` if the solver's update has made this center, and it is not finite."""
    if not math.isfinite(squared_norm(center)):
        raise TrainingStopped(
            f"the solver's update at iteration {iteration} is not finite: training has diverged; lower --lr"
        )
