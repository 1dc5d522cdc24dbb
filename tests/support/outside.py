"""Modes and rules as users write them, in a module that only the folder of the command has."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

RULES = '''
"""Rules for a test, as a user writes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from speedo.system.bounds import Interval, Option
from speedo.sgd_modes.rules import Contribution, MergeRule, State, mean_into


@dataclass(frozen=True)
class Added(MergeRule):
    """As add-delta."""

    rounds: ClassVar = False
    by_ranges: ClassVar = True

    def rate(self, workers, staleness=0):
        return min(1.0, 2.0 / max(workers, 1))

    def merge(self, center, contributions, rate, iteration, state):
        for one in contributions:
            center += np.float32(rate) * one.vector if rate != 1 else one.vector


@dataclass(frozen=True)
class Heavy(MergeRule):
    """The mean of a round, with momentum."""

    rounds: ClassVar = True
    by_ranges: ClassVar = True
    by_mean: ClassVar = True
    vectors: ClassVar = ("momentum",)
    numbers: ClassVar = ("merges",)
    heavy: Annotated[float, Option("Momentum of the rounds.", Interval("[0, 1)", "use less than 1"))] = 0.5

    def merge(self, center, contributions, rate, iteration, state):
        mean = np.empty_like(center)
        mean_into(mean, contributions)
        momentum = state.vectors["momentum"]
        momentum *= np.float32(self.heavy)
        momentum += mean
        center += momentum
        state.numbers["merges"] += 1


@dataclass(frozen=True)
class Backwards(MergeRule):
    """Adds what is left of the way from where its worker began."""

    rounds: ClassVar = False
    by_ranges: ClassVar = True
    wants_begun: ClassVar = True

    def merge(self, center, contributions, rate, iteration, state):
        (one,) = contributions
        assert one.staleness >= 0 and one.loss == one.loss
        center += one.vector + np.float32(0.25) * (one.begun - center)


@dataclass(frozen=True)
class Normed(MergeRule):
    """Needs the whole vector."""

    rounds: ClassVar = None

    def merge(self, center, contributions, rate, iteration, state):
        center += contributions[0].vector / (1 + np.linalg.norm(center))


@dataclass(frozen=True)
class Explodes(MergeRule):
    rounds: ClassVar = False

    def merge(self, center, contributions, rate, iteration, state):
        center /= 0 if iteration > 3 else 1
'''

MODES = '''
"""Modes for a test, as a user writes them."""

import time
from dataclasses import dataclass
from typing import Annotated

from speedo.system.bounds import Option, Whole
from speedo.messages import NOTHING, Decision


@dataclass
class EveryOther:
    """Merges each N-th result."""

    rule: object
    local_steps: object = 1
    every: Annotated[int, Option("Merge each N-th result.", Whole(1, 9))] = 2
    seen: int = 0

    def on_join(self, workers):
        return Decision(train=workers)

    def on_result(self, result):
        self.seen += 1
        who = (result.worker,)
        if self.seen % self.every:
            return Decision(discard=who, train=who, why="not its turn")
        return Decision(merge=who, train=who)

    def on_leave(self, worker):
        return NOTHING


@dataclass
class Stuck(EveryOther):
    """Lets nobody train after the third result."""

    def on_result(self, result):
        self.seen += 1
        who = (result.worker,)
        return Decision(merge=who, train=() if self.seen > 3 else who)


@dataclass
class Twice(EveryOther):
    """Merges a result once more with the next worker's."""

    last: int = -1

    def on_result(self, result):
        who, before = (result.worker,), self.last
        self.last = result.worker
        return Decision(merge=who if before in (-1, *who) else (before, *who), train=who)


@dataclass
class Sleeps(EveryOther):
    def on_result(self, result):
        time.sleep(20)


@dataclass
class Raises(EveryOther):
    def on_result(self, result):
        raise KeyError("mine")
'''


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of the module of RULES and MODES, which is in the folder of the command alone."""
    name = f"outside_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(RULES + MODES)
    monkeypatch.chdir(tmp_path)
    path = [*sys.path]
    yield name
    sys.path[:] = path
