"""What each mode promises, stated once more: `docs/modes.md` for an observer who sees only what happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from speedo.messages import Part

if TYPE_CHECKING:
    from tests.support.checker import Checker
    from tests.support.rules_of_a_run import Turn


class ModeCheck:
    """async and easgd: every result is merged alone and at once."""

    def __init__(self, options: Mapping[str, Any], books: Checker) -> None:
        self.options, self.books = options, books
        self.draining = False

    def accepted(self, worker: int) -> None:
        """A sound result came."""

    def gone(self, worker: int) -> None:
        """A worker left, or its result was refused, which ends whatever held it in this mode."""

    def void(self, part: Part) -> None:
        """It is discarded, as too few workers were there meanwhile."""

    def merging(self, parts: Sequence[Part]) -> None:
        self.books.require(len(parts) == 1, "merged together", parts)

    def may_discard(self, part: Part) -> bool:
        return False

    def training(self, worker: int) -> None:
        self.books.require(not self.draining, "trains on after the end of the phase", worker)

    def event_ends(self) -> None:
        self.books.require(not self.books.held, "neither merged nor dropped", self.books.held)


class SyncCheck(ModeCheck):
    """One merge a round, of all its results, as soon as no more than the backups of it train.

    What comes of a round that is closed is discarded, and its worker trains for the present round at once. All of one
    in the midst of which too few workers were there is discarded.
    """

    def __init__(self, options: Mapping[str, Any], books: Checker) -> None:
        super().__init__(options, books)
        self.backups = options.get("backup_workers", 0)
        self.closed: set[int] = set()  # tickets of turns that a round was closed without
        self.returned: tuple[int, int] | None = None  # event, and who brought such a turn in it
        self.void_at = -1  # the event in which a round was closed of which nothing was merged

    def merging(self, parts: Sequence[Part]) -> None:
        books = self.books
        missing = len(books.turns)
        books.require(missing <= self.backups, "the round closes while some train", *books.turns)
        found = {(part.worker, part.incarnation, part.ticket) for part in parts}
        books.require(found == set(books.held), "not the whole round", parts, *books.held)
        stale = self.closed.intersection(part.ticket for part in parts)
        books.require(not stale, "merged after its round was closed", *stale)
        self.closed = {turn.train.ticket for turn in books.turns.values()}

    def void(self, part: Part) -> None:
        """So is the whole of its round."""
        self.returned = (self.books.events, part.worker)
        if part.ticket not in self.closed:
            self.returned, self.void_at = None, self.books.events
            self.closed = {turn.train.ticket for turn in self.books.turns.values()}

    def _trained_for(self) -> list[Turn]:
        """The turns whose results the round waits for."""
        turns = self.books.turns.values()
        return [turn for turn in turns if turn.train.ticket not in self.closed]

    def may_discard(self, part: Part) -> bool:
        self.returned = (self.books.events, part.worker)
        if part.ticket in self.closed:
            return True
        void = {ticket for _, _, ticket in self.books.held} & self.books.void
        if void:
            self.void(part)
        return self.void_at == self.books.events

    def training(self, worker: int) -> None:
        super().training(worker)
        books = self.books
        if self.returned == (books.events, worker):
            return
        books.require(not books.held, "a new round before the merge", *books.held)
        late = [turn.train for turn in self._trained_for() if turn.event != books.events]
        books.require(not late, "a round within a round", worker, *late)

    def event_ends(self) -> None:
        """Results wait only for more than the backups."""
        books = self.books
        waits = not books.held or len(books.turns) > self.backups
        books.require(waits, "the round is not closed", *books.held)


class PartialCheck(ModeCheck):
    """Nobody begins a turn who is `max_advance` turns ahead of the slowest.

    A worker without a turn is held if it is too far ahead, and parked otherwise; who comes back from there is
    level with the fastest. If results are taken together, one that reported first may be parked before the last.
    """

    def __init__(self, options: Mapping[str, Any], books: Checker) -> None:
        super().__init__(options, books)
        self.bound = options.get("max_advance", 2)
        self.turns: dict[int, int] = {}
        self.looked_at = 0  # the events until the workers without a turn were last looked at

    def accepted(self, worker: int) -> None:
        self.turns[worker] += 1

    def gone(self, worker: int) -> None:
        self.turns.pop(worker, None)

    def _lead_of(self, worker: int) -> int:
        """Before the slowest; who is to leave and has no turn any more is not waited for."""
        away = self.books.leaving - self.books.turns.keys()
        return self.turns[worker] - min(n for one, n in self.turns.items() if one not in away)

    def training(self, worker: int) -> None:
        super().training(worker)
        if worker not in self.turns:
            self.turns[worker] = max(self.turns.values(), default=0)
            return  # a newcomer trains at once
        lead = self._lead_of(worker)
        if lead >= self.bound and self.books.events - self.looked_at > 1:
            self._park(without=worker)
            lead = self._lead_of(worker)
        self.books.require(lead < self.bound, "too far ahead", worker, lead)

    def event_ends(self) -> None:
        super().event_ends()
        self.looked_at = self.books.events
        if not self.draining:
            self._park()

    def _park(self, without: int = -1) -> None:
        idle = [one for one in self.turns if one not in self.books.turns and one != without]
        while parked := [w for w in idle if self.turns[w] - min(self.turns.values()) < self.bound]:
            for worker in parked:
                del self.turns[worker]
                idle.remove(worker)


class CatchUpCheck(ModeCheck):
    """Who is `max_advance` turns ahead stops all: the others finish their turns, and then all begin together.

    Meanwhile nobody else begins a turn, a newcomer neither. A worker without a turn outside of that is parked.
    """

    def __init__(self, options: Mapping[str, Any], books: Checker) -> None:
        super().__init__(options, books)
        self.bound = options.get("max_advance", 2)
        self.turns: dict[int, int] = {}
        self.owing: set[int] = set()  # whose result the others wait for

    def accepted(self, worker: int) -> None:
        if self.owing:
            self.books.require(worker in self.owing, "trained during a catch-up", worker)
            return self._finished(worker)
        self.turns[worker] += 1
        if self.turns[worker] >= min(self.turns.values()) + self.bound:
            self.owing = set(self.turns) - {worker}

    def gone(self, worker: int) -> None:
        self.turns.pop(worker, None)
        if worker in self.owing:
            self._finished(worker)

    def _finished(self, worker: int) -> None:
        self.owing.discard(worker)
        if not self.owing:
            self.turns = dict.fromkeys(self.turns, 1)

    def training(self, worker: int) -> None:
        super().training(worker)
        may = not self.owing or worker in self.owing  # told after others that came together
        self.books.require(may, "begins during a catch-up", worker, *self.owing)
        self.turns.setdefault(worker, max(self.turns.values(), default=1))

    def event_ends(self) -> None:
        super().event_ends()
        if self.draining:
            return
        for worker in [one for one in self.owing if one not in self.books.turns]:
            self.gone(worker)
        if not self.owing:
            busy = self.books.turns.keys() | self.books.leaving
            idle = [one for one in self.turns if one not in busy]
            self.books.require(not (idle and self.books.has_work()), "do not start", *idle)
            for worker in idle:
                del self.turns[worker]


class WeedOutCheck(ModeCheck):
    """Discarded from a staleness of max(window, n) on, and never below.

    n is the number of live workers; those that have no work any more may or may not be counted.
    """

    def _bound(self, workers: int) -> int:
        return max(self.options.get("window") or 2 * workers, workers)

    def merging(self, parts: Sequence[Part]) -> None:
        super().merging(parts)
        too_stale = parts[0].staleness >= self._bound(len(self.books.members))
        self.books.require(not too_stale, "merged, but too stale", parts)

    def may_discard(self, part: Part) -> bool:
        fresh = part.staleness < self._bound(len(self.books.turns) + 1)
        self.books.require(not fresh, "discarded, but fresh enough", part)
        return True


CHECKS = {"sync": SyncCheck, "partial": PartialCheck, "weed-out": WeedOutCheck}


def mode_check(options: Mapping[str, Any], books: Checker) -> ModeCheck:
    if options.get("catch_up"):
        return CatchUpCheck(options, books)
    return CHECKS.get(options["mode"], ModeCheck)(options, books)
