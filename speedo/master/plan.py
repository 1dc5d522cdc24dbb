"""The work of a run in the solver's own terms, and what falls on which iteration of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_ROUNDS: Final = 1000  # of a stretch


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
    stretch_s: float = 0.0  # seconds that a team may train between two reports
    own_counts: bool = False  # whether workers may train less than a turn: their scripts end, or have no records left

    @property
    def samples(self) -> int:
        return self.batch * self.max_iter


def crossed(before: int, after: int, interval: int) -> bool:
    """Whether a multiple of the interval is in (before, after]."""
    return interval > 0 and after // interval > before // interval


def rounds_of(
    plan: Plan,
    iteration: int,
    left: int,
    samples: int,
    round_s: float,
    change: int | None = None,
) -> int:
    """How many rounds of this many `samples` a team that trains alone does before it reports; at least 1.

    At most what fits into the plan's seconds, into the samples that are `left`, before the next test or snapshot, and
    before the iteration at which turns `change` their length.
    1 where the samples of a round are no whole number of iterations: each iteration keeps its learning rate.
    """
    per_round, rest = divmod(samples, plan.batch)
    if rest or per_round == 0 or round_s <= 0.0:
        return 1
    rounds = min(MOST_ROUNDS, int(plan.stretch_s / round_s), left // samples)
    for interval in (plan.test_interval, plan.snapshot):
        if interval:
            rounds = min(rounds, -(-(interval - iteration % interval) // per_round))
    if change is not None:
        rounds = min(rounds, -(-(change - iteration) // per_round))
    return max(1, rounds)
