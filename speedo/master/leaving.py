"""What is done with a notice: a worker hands in what it has and leaves; a run ends in the time that is left."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from speedo.master.members import Member
from speedo.master.turn_book import TurnBook
from speedo.messages import Leaving, Left

FOR_HISTORIES: Final = 0.25  # of a notice, to get the workers' solver histories
FOR_TEST: Final = 0.7  # of a notice, until the last test is given up: the rest is for the export


@dataclass
class Leavers:
    """The workers of `book` that are to leave: they get no other turn, and may end those that they have early."""

    book: TurnBook
    _leaving: set[int] = field(default_factory=set)

    def told(self, event: Leaving) -> None:
        """Take the wish, which may come several times."""
        member = self.book.members.get(event.worker)
        if member is None or member.incarnation != event.incarnation or member.leaves:
            return
        member.leaves = event.cause
        self._leaving.add(event.worker)
        stretches = [turn.stretch for turn in member.turns if turn.stretch is not None]
        together = [self.book.members.get(who) for one in stretches for who in one.workers]
        for other in (member, *together):
            for turn in () if other is None else other.turns:
                turn.may_end_early = True

    def done(self) -> list[Left]:
        """Those whose results are there: their hosts may end them."""
        found = []
        for worker in sorted(self._leaving):
            member = self.book.members.get(worker)
            if member is None or not member.leaves:  # gone, or already another one
                self._leaving.discard(worker)
            elif not (member.turns or self._is_awaited(worker, member)):
                self._leaving.discard(worker)
                found.append(Left(worker, member.incarnation, member.leaves))
        return found

    def _is_awaited(self, worker: int, member: Member) -> bool:
        """Whether the result of its team is still to come."""
        stretch = self.book.stretch_of(member)
        return stretch is not None and worker in stretch.workers


@dataclass
class Notice:
    """How long the end of a run may take: `within_s` seconds from `since` on."""

    since: float = 0.0
    within_s: float = math.inf

    def given(self, now: float, within_s: float) -> None:
        """The end is asked for, with a notice if not 0; the first counts."""
        if within_s and self.within_s == math.inf:
            self.since, self.within_s = now, within_s

    @property
    def for_histories_s(self) -> float:
        """Seconds to get the workers' solver histories."""
        return FOR_HISTORIES * self.within_s

    def test_by(self, deadline: float) -> float:
        """This deadline of a test, or when it is given up for the sake of the export."""
        return min(deadline, self.since + FOR_TEST * self.within_s)

    @property
    def no_test(self) -> str:
        """Why the last version has no metrics then; empty without a notice."""
        if self.within_s == math.inf:
            return ""
        return f"a notice of {self.within_s:.0f} s was too short for it; `speedo test` scores the model"
