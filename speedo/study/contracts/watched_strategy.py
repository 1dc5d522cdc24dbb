"""A strategy under watch: every decision is looked at, and all that it heard and answered is kept as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NoReturn

from speedo.messages import Decision, Result
from speedo.sgd_modes.base import Length, Strategy
from speedo.sgd_modes.rules import MergeRule

MOST_UNMERGED: Final = 200  # results in a row of which none is merged
SHOWN: Final = 24  # lines of a schedule


class BrokenStrategyError(AssertionError):
    """A strategy broke its contract; the text has the schedule that shows it."""


@dataclass
class WatchedStrategy:
    """Implements `Strategy` by another one. Raises `BrokenStrategyError` at the first decision that is wrong.

    A worker `trains` from the decision that lets it until its result comes or it leaves; it `waits` with a result that
    is neither merged nor discarded.
    """

    inner: Strategy
    lines: list[str] = field(default_factory=list)
    there: set[int] = field(default_factory=set)
    trains: set[int] = field(default_factory=set)
    waits: set[int] = field(default_factory=set)
    merged: set[int] = field(default_factory=set)
    unmerged: int = 0

    @property
    def name(self) -> str:
        return str(getattr(self.inner, "name", type(self.inner).__name__))

    @property
    def rule(self) -> MergeRule:
        return self.inner.rule

    @property
    def local_steps(self) -> Length:
        return self.inner.local_steps

    def on_join(self, workers: tuple[int, ...]) -> Decision:
        self.there.update(workers)
        self.lines.append(f"{_workers(workers)} join")
        return self._looked_at(self.inner.on_join(workers))

    def on_result(self, result: Result) -> Decision:
        worker = result.worker
        self.trains.discard(worker)
        self.waits.add(worker)
        self.unmerged += 1
        self.lines.append(f"worker {worker} has a result, staleness {result.staleness}")
        return self._looked_at(self.inner.on_result(result))

    def on_leave(self, worker: int) -> Decision:
        self.there.discard(worker)
        self.trains.discard(worker)
        self.lines.append(f"worker {worker} leaves")
        return self._looked_at(self.inner.on_leave(worker))

    def _looked_at(self, decision: Decision) -> Decision:
        self.lines[-1] += f": {_said(decision)}"
        if not isinstance(decision, Decision):
            self._object(f"it answers {decision!r}, which is no Decision")
        for word, workers in (("discards", decision.discard), ("merges", decision.merge)):
            for worker in workers:
                if worker not in self.waits:
                    again = " twice" if worker in self.merged else ", which has none that waits"
                    self._object(f"it {word} a result of worker {worker}{again}")
                self.waits.discard(worker)
                self.merged.add(worker)
                self.unmerged = 0 if word == "merges" else self.unmerged
        for worker in decision.train:
            if worker not in self.there:
                self._object(f"it lets worker {worker} train, which is not there")
            if worker in self.trains:
                self._object(f"it lets worker {worker} train, which trains already")
            self.trains.add(worker)
        if self.there and not self.trains:
            waiting = _workers(tuple(sorted(self.there)))
            self._object(f"it deadlocks: no worker trains, and {waiting} would wait forever")
        if self.unmerged >= MOST_UNMERGED:
            self._object(f"it has merged none of the last {MOST_UNMERGED} results")
        return decision

    def _object(self, what: str) -> NoReturn:
        lines, cut = self.lines, len(self.lines) - SHOWN
        if cut > 0:
            lines = [*lines[:2], f"... {cut + 1} more ...", *lines[cut + 3 :]]
        raise BrokenStrategyError("\n".join([what, *(f"    {line}" for line in lines)]))


def _workers(workers: tuple[int, ...]) -> str:
    return f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers))}"


def _said(decision: Decision) -> str:
    parts = [
        f"{word} {', '.join(map(str, workers))}"
        for word in ("discard", "merge", "train")
        if (workers := getattr(decision, word, ()))
    ]
    return "; ".join(parts) or "nothing"
