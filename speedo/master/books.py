"""What the coordinator writes down: the plan of the run, its workers, their turns and results."""

from __future__ import annotations

from dataclasses import dataclass, field

from speedo.messages import Drop, Part, Refused, Trained
from speedo.sgd_modes.rules import MergeRule
from speedo.vectors.vector import Kind


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
    """The merge that a worker's latest result went into, of ticket `ticket`."""

    version: int
    rule: MergeRule
    rate: float
    ticket: int


@dataclass(slots=True)
class Member:
    """A worker that is in the run."""

    incarnation: int
    samples_per_step: int
    depth: int = 1
    turns: list[Turn] = field(default_factory=list)  # the oldest first
    latest: int = 0  # the ticket of the turn that was issued last
    strikes: int = 0
    merged: Merged | None = None

    def catch_up(self, rule: MergeRule, version: int) -> tuple[float | None, int]:
        """Elastic averaging: `Train.moving_rate` and `Train.own.merged` of the turn that was just added.

        A worker goes on from its own weights right after its own merge, or ahead of it.
        """
        merged = self.merged
        if rule.payload is Kind.WEIGHTS:
            if merged is not None and merged.rule is rule and merged.version == version:
                return merged.rate, merged.ticket
            if len(self.turns) > 1:
                return 0.0, 0
        return None, 0

    @property
    def has_room(self) -> bool:
        """Whether it may have one more turn; not while an earlier one is late, which a later one has overtaken."""
        in_order = not self.turns or self.turns[-1].ticket == self.latest
        return in_order and len(self.turns) < self.depth

    def turn(self, ticket: int) -> Turn | None:
        """The turn of this ticket, while its result is owed."""
        for turn in self.turns:
            if turn.ticket == ticket:
                return turn
        return None

    def end(self, ticket: int) -> Turn:
        """Its result has come. It is the worker's own, which makes no other turn of it staler."""
        turn = self.turn(ticket)
        assert turn is not None
        self.turns.remove(turn)
        for other in self.turns:
            other.received_before += 1
        self.merged = None
        return turn

    def end_all(self) -> int:
        """None of its results is waited for any more: the samples of all these turns."""
        samples = sum(turn.samples for turn in self.turns)
        self.turns.clear()
        self.merged = None
        return samples


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
