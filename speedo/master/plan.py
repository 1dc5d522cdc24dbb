"""The work of a run, and how much of it a team does before it reports."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

MOST_ROUNDS: Final = 1000  # of a stretch
# Of a stretch, at most, that its report takes; `Plan.most_stretch_s` permitting.
REPORT_PART: Final = 0.02
MOST_STRETCH_S: Final = 30.0  # so much may be lost, for reports that take long


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of a run, in the solver's own terms: iterations of `batch` samples."""

    batch: int
    max_iter: int
    workers: int
    min_workers: int = 1
    test_interval: int = 0
    test_initialization: bool = False
    snapshot: int = 0
    teams: bool = False  # whether workers that can meet sum among themselves
    over_hosts: bool = False  # whether a team has the workers of all hosts, else those of one
    # Seconds that a team may train between two reports; if reports take long, up to the second number.
    stretch_s: float = 0.0
    most_stretch_s: float = MOST_STRETCH_S
    own_counts: bool = False  # whether workers may train less than a turn: their scripts end, or have no records left
    once: bool = False  # whether no turn may be longer than the work that is left

    @property
    def samples(self) -> int:
        return self.batch * self.max_iter

    @property
    def nothing_to_train(self) -> bool:
        """Whether `max_iter` is 0: as with Caffe, the run tests and writes the weights that it begins with."""
        return self.samples == 0


def crossed(before: int, after: int, interval: int) -> bool:
    """Whether a multiple of the interval is in (before, after]."""
    return interval > 0 and after // interval > before // interval


def rounds_of(
    plan: Plan,
    merged: int,
    left: int,
    samples: int,
    round_s: float,
    report_s: float = 0.0,
    between_s: float = math.inf,
    change: int | None = None,
) -> int:
    """How many rounds of this many `samples` a team that trains alone does before it reports; at least 1.

    At most what fits into the plan's seconds, or into those of which its report is a small part, into the samples that
    are `left`, before the next test or snapshot, and before the iteration at which turns `change` their length;
    `merged` are the samples so far. Where a stretch is void every `between_s` seconds, it is not lengthened beyond
    sqrt(2 `report_s` `between_s`), at which reports and what is lost cost least (Young, A First Order Approximation to
    the Optimum Checkpoint Interval, 1974).
    """
    if samples <= 0 or round_s <= 0.0:
        return 1
    seconds = plan.stretch_s
    if seconds:
        best = math.sqrt(2.0 * report_s * between_s) if report_s else 0.0
        seconds = max(seconds, min(plan.most_stretch_s, report_s / REPORT_PART, best))
    rounds = min(MOST_ROUNDS, int(seconds / round_s), left // samples)
    at = merged // plan.batch
    ends = [at - at % every + every for every in (plan.test_interval, plan.snapshot) if every]
    for end in ends if change is None else [*ends, change]:
        rounds = min(rounds, -(-(end * plan.batch - merged) // samples))
    return max(1, rounds)
