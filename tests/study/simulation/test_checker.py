"""The checker can fail: each way to break the real parts is noticed within a few runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from speedo.exchange.codecs.int8 import Int8
from speedo.master import center
from speedo.master.center import Center
from speedo.master.coordinator import Coordinator
from speedo.master.driver import Driver
from speedo.master.members import Member, Merged, Turn
from speedo.messages import NOTHING, Decision, Result
from speedo.sgd_modes.catch_up import CatchUp
from speedo.sgd_modes.hybrid import Hybrid
from speedo.sgd_modes.partial import Partial
from speedo.sgd_modes.rules import AddDelta, AverageDeltas
from speedo.sgd_modes.synchronous import Synchronous
from speedo.sgd_modes.turn_length import AdaptiveLength
from speedo.sgd_modes.weed_out import WeedOut
from tests.support.rules_of_a_run import Violation
from tests.support.schedules import check

RUNS = 60

Break = Callable[[pytest.MonkeyPatch], None]


def objections(mode: str) -> str:
    """What the checker says to the first run that it objects to; empty if to none."""
    for seed in range(RUNS):
        try:
            check(mode, seed)
        except Violation as violation:
            return str(violation)
    return ""


def replace(kind: type, name: str, new: Any) -> Break:
    return lambda patch: patch.setattr(kind, name, new)


def after(kind: type, name: str, more: Callable[..., None]) -> Break:
    """The method does what it does, and then something more to its object."""
    real = getattr(kind, name)

    def both(self: Any, *arguments: Any, **options: Any) -> Any:
        result = real(self, *arguments, **options)
        more(self, *arguments)
        return result

    return replace(kind, name, both)


def merges_stale(self: WeedOut, result: Result) -> Decision:
    return Decision(merge=(result.worker,), train=(result.worker,))


def closes_early(self: Synchronous, result: Result) -> Decision:
    self.awaited.discard(result.worker)
    self.delivered.append(result.worker)
    return self._close_round()


def counts_stragglers(self: Synchronous, result: Result) -> Decision:
    self.late.discard(result.worker)
    self.awaited.discard(result.worker)
    self.delivered.append(result.worker)
    return self._close_when_enough()


def waits_for_all(self: Synchronous) -> Decision:
    return NOTHING if self.awaited else self._close_round()


def releases_all(self: Partial, first: int = -1) -> tuple[int, ...]:
    free, self.held = tuple(sorted(self.held)), set()
    return free


def stops_only_the_fastest(self: CatchUp, worker: int) -> tuple[int, ...]:
    self.owing.discard(worker)
    return (worker,) if self.owing else tuple(sorted(self.counts.turns))


def starts_without_the_fastest(self: CatchUp, worker: int) -> tuple[int, ...]:
    self.owing.discard(worker)
    return () if self.owing else tuple(sorted(self.counts.turns.keys() - {worker}))


def stays_as_it_was(self: AdaptiveLength, iteration: int) -> int:
    return self.longest


def keeps_own_rate(self: Member, rule: Any, version: int) -> tuple[float | None, int]:
    merged = self.merged
    return (0.3, merged.ticket) if rule.payload == 3 and merged is not None else (None, 0)


def takes_late(self: Member, ticket: int) -> Turn | None:
    """Whatever comes from a worker that trains is its result."""
    return self.turns[0] if self.turns else None


def counts_twice(self: Coordinator, *unused: object) -> None:
    self.received += 1


def skips_a_version(self: Coordinator, *unused: object) -> None:
    self.version += 1


def spoils(self: Center, *unused: object) -> None:
    self.vector[0] += 1e-4


def forgets_the_wait(self: Driver, *unused: object) -> None:
    self._short_since = None


def forgets_turns(self: Driver, *unused: object) -> None:
    self._deadlines._pending.clear()


def carries_over_what_was_refused(self: Member) -> int:
    samples = sum(turn.samples for turn in self.turns)
    if self.turns:
        self.merged = Merged(0, self.turns[0].rule, 1.0, self.turns[0].ticket)
    self.turns.clear()
    return samples


BREAKS: dict[str, tuple[str, str, Break]] = {
    "a stale result merges": ("weed-out", "too stale", replace(WeedOut, "on_result", merges_stale)),
    "a round closes early": (
        "sync",
        "the round closes while",
        replace(Synchronous, "on_result", closes_early),
    ),
    "a straggler counts for a later round": (
        "sync",
        "merged after its round was closed",
        replace(Synchronous, "on_result", counts_stragglers),
    ),
    "a round waits for its backups": (
        "sync",
        "the round is not closed",
        replace(Synchronous, "_close_when_enough", waits_for_all),
    ),
    "the bound is ignored": (
        "partial",
        "too far ahead",
        replace(Partial, "_release", releases_all),
    ),
    "a catch-up stops the fastest alone": (
        "partial",
        "begins during a catch-up|trained during a catch-up",
        replace(CatchUp, "_finished", stops_only_the_fastest),
    ),
    "after a catch-up one is left out": (
        "partial",
        "do not start",
        replace(CatchUp, "_finished", starts_without_the_fastest),
    ),
    "the loss does not shorten turns": (
        "async",
        "wrong length",
        replace(AdaptiveLength, "at", stays_as_it_was),
    ),
    "a phase begins too early": (
        "hybrid",
        "after the end of the phase|payload|rate|length",
        after(Hybrid, "_settle", lambda self, decision: self.training.clear()),
    ),
    "a phase does not end": (
        "hybrid",
        "trains on after the end of the phase",
        replace(Hybrid, "_draining", property(lambda self: False)),
    ),
    "own weights after another's merge": (
        "easgd",
        "wrong moving rate",
        replace(Member, "catch_up", keeps_own_rate),
    ),
    "staleness is miscounted": ("async", "wrong books", after(Coordinator, "_train", counts_twice)),
    "a version is left out": ("async", "version", after(Coordinator, "_train", skips_a_version)),
    "work never ends": (
        "async",
        "beyond the work",
        replace(
            Coordinator, "_samples_in_flight", property(lambda self: 0, lambda self, new: None)
        ),
    ),
    "a late result is taken": (
        "async",
        "another record is owed|nobody sent it|follows another",
        replace(Member, "turn", takes_late),
    ),
    "NaN is let in": (
        "async",
        "nobody sent it",
        lambda patch: patch.setattr(center, "squared_norm", lambda vector: 1.0),
    ),
    "another rate": (
        "async",
        "wrong rate|another rate",
        replace(AddDelta, "rate", lambda self, workers, staleness: 1.0),
    ),
    "staleness changes nothing": (
        "weed-out",
        "wrong rate",
        replace(
            AddDelta, "staleness_scaling", property(lambda self: False, lambda self, new: None)
        ),
    ),
    "a part is left out": (
        "sync",
        "not its replay",
        replace(AverageDeltas, "merge_into", lambda *unused: None),
    ),
    "the center changes after its publication": (
        "easgd",
        "not its replay",
        after(Center, "publish", spoils),
    ),
    "old centers are left behind": ("easgd", "left behind", replace(Center, "_retire", print)),
    "a payload is decoded wrongly": (
        "async",
        "not its replay",
        after(Int8, "_decode", lambda self, coded, into: np.multiply(into, 1.01, out=into)),
    ),
    "a refused payload's loss is carried over": (
        "async",
        "carries over",
        replace(Member, "end_all", carries_over_what_was_refused),
    ),
    "nobody counts the time without workers": (
        "sync",
        "too long for workers|does not end",
        after(Driver, "_take", forgets_the_wait),
    ),
    "a lost turn is waited for": (
        "sync",
        "overdue|does not end",
        after(Driver, "_take", forgets_turns),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_the_checker_notices_that(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mode, words, break_it = BREAKS[name]
    break_it(monkeypatch)
    found = objections(mode)
    assert found
    assert any(word in found for word in words.split("|")), found


@pytest.mark.slow
def test_the_checker_objects_to_none_of_these_runs_unbroken() -> None:
    assert {mode: objections(mode) for mode in ("sync", "easgd")} == {"sync": "", "easgd": ""}
