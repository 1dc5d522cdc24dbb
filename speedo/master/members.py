"""A worker in the books of a run, and the turns that it owes the results of."""

from __future__ import annotations

from dataclasses import dataclass, field

from speedo.master.teams import Stretch
from speedo.messages import Kind
from speedo.sgd_modes.rules import MergeRule
from speedo.system.records import record


@dataclass(slots=True)
class Turn:
    """A turn that its worker still owes the result of.

    `samples` are those of its steps, of `per_step` each; of fewer if it `may_end_early`. `void` is why it counts for
    nothing, empty if it counts.
    """

    ticket: int
    samples: int
    received_before: int
    rule: MergeRule
    stretch: Stretch | None = None
    per_step: int = 1
    may_end_early: bool = False
    void: str = ""


@record
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
    unit: int = 0  # what the strategy knows it by: itself, or its team
    meets: str = ""  # as in `Joined`
    near: bool = False  # likewise
    turns: list[Turn] = field(default_factory=list)  # the oldest first
    latest: int = 0  # the ticket of the turn that was issued last
    strikes: int = 0
    pauses: bool = False
    leaves: str = ""  # why it is to leave, and gets no other turn
    merged: Merged | None = None

    def catch_up(self, rule: MergeRule, version: int) -> tuple[float | None, int]:
        """Elastic averaging: `Train.moving_rate` and `Train.own.merged` of the turn that was just added.

        A worker continues from its own weights right after its own merge, or ahead of it.
        """
        if rule.payload is Kind.WEIGHTS:
            if (merged := self.made(rule, version)) is not None:
                return merged.rate, merged.ticket
            if len(self.turns) > 1:
                return 0.0, 0
        return None, 0

    def made(self, rule: MergeRule, version: int) -> Merged | None:
        """The merge of its latest result, if that made this version by this rule."""
        merged = self.merged
        is_it = merged is not None and merged.rule is rule and merged.version == version
        return merged if is_it else None

    @property
    def rests(self) -> bool:
        """Whether it has no records of the batch for now: the others make steps, of which it has no state."""
        return not self.samples_per_step

    @property
    def has_room(self) -> bool:
        """Whether it may have one more turn; not while an earlier one is late, which a later one has overtaken."""
        in_order = not self.turns or self.turns[-1].ticket == self.latest
        return in_order and len(self.turns) < self.depth and not self.leaves

    def turn(self, ticket: int) -> Turn | None:
        """The turn of this ticket, while its result is owed."""
        for turn in self.turns:
            if turn.ticket == ticket:
                return turn
        return None

    def end(self, turn: Turn) -> None:
        """Its result has come. It is the worker's own, which makes no other turn of it staler."""
        self.turns.remove(turn)
        for other in self.turns:
            other.received_before += 1
        self.merged = None

    def end_all(self) -> int:
        """None of its results is waited for any more: the samples of all these turns."""
        samples = sum(turn.samples for turn in self.turns)
        self.turns.clear()
        self.merged = None
        return samples
