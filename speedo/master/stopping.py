"""When a run ends before `max_iter`: a time, a target, tests without progress. And which model is the best so far.

Pure: it is notified of tests and of elapsed seconds, and answers with reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Protocol

from speedo.messages import Elapsed, KeepBest
from speedo.sgd_modes.conditions import Watched, parse_condition, watched_of


@dataclass(frozen=True, slots=True)
class StopRules:
    """The rules as the user gives them; None, 0 and empty: no such rule. `best_by` names the watched output."""

    max_seconds: float | None = None
    target: str = ""
    patience: int = 0
    best_by: str = ""
    keep_best: bool = False


@dataclass(frozen=True, slots=True)
class TestVerdict:
    """What follows from a test: `reason` ends the run; `better` is the watched output, if it was never better."""

    reason: str = ""
    better: Watched | None = None


@dataclass
class Stopping:
    """Applies the rules.

    `best`, its iteration and the tests since then start where a resumed run left them.
    """

    rules: StopRules = field(default_factory=StopRules)
    best: float | None = None
    since_best: int = 0
    best_iteration: int | None = None

    def tested(self, metrics: Mapping[str, float], iteration: int) -> TestVerdict:
        """A test of the version of this iteration; tests come in the order of their versions."""
        rules = self.rules
        reason, better = "", None
        if rules.target:
            target = parse_condition(rules.target)
            if target.holds(metrics):
                value = metrics[target.output]
                reason = f"reached the target {target}: {value:.6g} at iteration {iteration}"
        watched = None
        if rules.patience or rules.keep_best:
            watched = watched_of(metrics, rules.best_by, rules.target)
        if watched is None or watched.output not in metrics:
            return TestVerdict(reason)
        value = metrics[watched.output]
        if isnan(value):  # not available, so neither better nor worse
            return TestVerdict(reason)
        if watched.is_better(value, self.best):
            self.best, self.best_iteration, self.since_best = value, iteration, 0
            better = watched
        else:
            self.since_best += 1
        if rules.patience and self.since_best >= rules.patience and not reason:
            tests = f"{self.since_best} test{'s' if self.since_best > 1 else ''}"
            at = "" if self.best_iteration is None else f" at iteration {self.best_iteration}"
            reason = f"no better {watched.output} in {tests}; the best is {self.best:.6g}{at}"
        return TestVerdict(reason, better)

    def trained(self, seconds: float) -> str:
        """Why the run ends after this many seconds of training in all; empty if it does not."""
        limit = self.rules.max_seconds
        return (
            "" if limit is None or seconds < limit else f"trained for {limit:g} s, the max_seconds"
        )


@dataclass
class TimeLimit:
    """When a run has trained for `max_seconds`, of which it trained `seconds_before` before it was resumed."""

    max_seconds: float | None
    seconds_before: float = 0.0
    began: float = 0.0
    deadline: float = float("inf")

    def begin(self, now: float) -> None:
        """The first turn is issued."""
        self.began = now
        if self.max_seconds is not None:
            self.deadline = now + max(0.0, self.max_seconds - self.seconds_before)

    def passed(self, now: float) -> Elapsed | None:
        """The event that the limit is reached; by rounding the sum may be a little below it."""
        if self.max_seconds is None or now < self.deadline:
            return None
        return Elapsed(max(self.seconds_before + now - self.began, self.max_seconds))


class BestModel(Protocol):
    """Keeps the best of the tested versions as a file."""

    def begin(self, version: int) -> None:
        """The present center, of this version, is being tested."""
        ...

    def keep(self, action: KeepBest) -> KeepBest:
        """Write this version, which `begin` got; returns the action with the problem, if there is one."""
        ...

    def forget(self, version: int) -> None:
        """The test of this version is over."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `metrics` are those of `version`, the last; empty if there is no test net."""

    complete: bool
    reason: str
    version: int
    iteration: int
    samples: int
    seconds: float
    metrics: Mapping[str, float]
    test_problem: str = ""
