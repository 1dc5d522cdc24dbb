"""What the coordinator writes down: the plan of the run, its workers, their turns and results."""

from __future__ import annotations

from dataclasses import dataclass

from speedo.messages import Drop, Part, Refused, Trained
from speedo.sgd_modes.rules import MergeRule


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

    @property
    def samples(self) -> int:
        return self.batch * self.max_iter


@dataclass(slots=True)
class Turn:
    """A turn that its worker still owes the result of."""

    ticket: int
    samples: int
    received_before: int
    rule: MergeRule


@dataclass(frozen=True, slots=True)
class Merged:
    """The merge that the result of a worker's latest turn went into."""

    version: int
    rule: MergeRule
    rate: float


@dataclass(slots=True)
class Member:
    """A worker that is in the run."""

    incarnation: int
    samples_per_step: int
    turn: Turn | None = None
    strikes: int = 0
    merged: Merged | None = None


@dataclass(slots=True)
class Held:
    """A result that was taken and waits for the strategy's word."""

    part: Part
    rule: MergeRule


def drop_of(
    result: Trained | Refused | Part,
    decision: str,
    reason: str,
    staleness: int = 0,
    loss: float = float("nan"),
) -> Drop:
    """The record of a result that is not merged."""
    return Drop(result.worker, result.incarnation, result.ticket, decision, reason, staleness, loss)


def crossed(before: int, after: int, interval: int) -> bool:
    """Whether a multiple of the interval lies in (before, after]."""
    return interval > 0 and after // interval > before // interval
