"""When workers on other machines are asked to fetch a center, so that they do not meet on the master's cable.

Two that fetch at once over one cable take twice as long each. One after the other, the first has its center in half
that time and the second no later, and from then on they are out of step: while one sends its payload up, the other's
center comes down. So a round of n workers in `sync` lasts n + 1 transfers and the compute, not 2 n and the compute; and
workers of the other modes, once apart, stay apart.

That holds only where the cable is shared. Workers whose own cables are the slow ones gain nothing by waiting, so it
is tried and kept only if fetching became as much faster as it should.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

LEAST_S: Final = 0.004  # a transfer so short is not worth a wait
READS: Final = 16  # fetches from which something is concluded
SETTLING: Final = 4  # those before them, in which the last change shows only by and by
CROWDED: Final = 1.3  # fetches at once, on average, from which there is something to gain
PART: Final = 0.5  # of the gain that was to be expected, what must be seen
AGAIN: Final = 40  # conclusions until all is looked at again
ODD: Final = 2.5  # times the median: a fetch that waited for something else

Span = tuple[float, float]  # start, and seconds from there


class _State(Enum):
    LOOKING = auto()
    TRYING = auto()
    PACING = auto()
    RESTING = auto()


class Pace:
    """Times are seconds of one clock. `gap`, from one fetch to the next, is found out; with `known` it is as given.

    `note` takes a line for people.
    """

    def __init__(
        self,
        gap: float = 0.0,
        *,
        known: bool = False,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.gap = gap
        self._note = note
        self._known = known
        self._free = 0.0
        self._reads: list[Span] = []
        self._state, self._left = _State.LOOKING, 0
        self._before = (0.0, 1.0)  # mean seconds of a fetch and fetches at once, without waiting

    def start(self, now: float) -> float:
        """When the next fetch is to begin: now, or once the one before it is over."""
        at = max(now, self._free)
        self._free = at + self.gap
        return at

    def fetched(self, start: float, seconds: float) -> None:
        """A fetch that began then took so long."""
        if self._known:
            return
        self._reads.append((start, seconds))
        if len(self._reads) < SETTLING + READS:
            return
        usual = ODD * statistics.median(took for _, took in self._reads)
        reads = [one for one in self._reads[SETTLING:] if one[1] <= usual]
        self._reads.clear()
        before = self.gap
        self._conclude(reads)
        if self.gap and not before:
            self._note(
                f"workers on other machines fetch one after another, {1000 * self.gap:.1f} ms apart"
            )

    def _conclude(self, reads: list[Span]) -> None:
        mean = statistics.fmean(seconds for _, seconds in reads)
        alone = covered(reads) / len(reads)  # as long would each take by itself on a shared cable
        self._left -= 1
        match self._state:
            case _State.LOOKING if alone >= LEAST_S and mean >= CROWDED * alone:
                self._before = (mean, mean / alone)
                self._go(_State.TRYING, alone)
            case _State.TRYING:
                former, crowd = self._before
                gained = former >= mean * (1.0 + PART * (crowd - 1.0))
                self._go(_State.PACING if gained else _State.RESTING, alone if gained else 0.0)
            case _State.PACING if self._left > 0 and alone >= LEAST_S:
                self.gap = alone
            case _State.PACING | _State.RESTING if self._left <= 0 or self.gap:
                self._go(_State.LOOKING, 0.0)
            case _:
                pass

    def _go(self, state: _State, gap: float) -> None:
        self._state, self.gap, self._left = state, gap, AGAIN


def covered(spans: list[Span]) -> float:
    """Seconds in which at least one of these lasts."""
    total, end = 0.0, float("-inf")
    for start, seconds in sorted(spans):
        total += max(0.0, start + seconds - max(start, end))
        end = max(end, start + seconds)
    return total
