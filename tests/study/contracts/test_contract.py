"""What `speedo.testing` finds in strategies and rules that are broken, and that it finds nothing in ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from speedo.exchange.vector import Vector
from speedo.messages import NOTHING, Decision, Result
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.registry import PLAIN, RULES
from speedo.sgd_modes.rules import NO_STATE, Contribution, MergeRule, State, mean_into
from speedo.testing import BrokenStrategyError, check_rule, check_strategy


@pytest.mark.parametrize("mode", PLAIN)
def test_every_mode_keeps_its_contract_in_random_schedules(mode: str) -> None:
    check_strategy(PLAIN[mode].schedule, 25)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_keeps_what_it_promises(rule: str) -> None:
    check_rule(RULES[rule]())


class Stuck(Asynchronous):
    """A worker that trained alone is held for ever."""

    def on_leave(self, worker: int) -> Decision:
        self.left = True
        return NOTHING

    def on_result(self, result: Result) -> Decision:
        train = () if getattr(self, "left", False) else (result.worker,)
        return Decision(merge=(result.worker,), train=train)


class Absent(Asynchronous):
    def on_leave(self, worker: int) -> Decision:
        return Decision(train=(worker,))


class Impatient(Asynchronous):
    def on_result(self, result: Result) -> Decision:
        return Decision(merge=(result.worker,), train=(0, 1))


class Never(Asynchronous):
    def on_result(self, result: Result) -> Decision:
        return Decision(discard=(result.worker,), train=(result.worker,))


class Silent(Asynchronous):
    def on_result(self, result: Result) -> Decision:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (Stuck, "deadlocks: no worker trains"),
        (Absent, "which is not there"),
        (Impatient, "which trains already"),
        (Never, "has merged none of the last 200 results"),
        (Silent, "it answers None, which is no Decision"),
    ],
)
def test_a_broken_strategy_is_found_with_its_schedule(
    broken: Callable[..., Asynchronous], words: str
) -> None:
    with pytest.raises(BrokenStrategyError, match=words) as found:
        check_strategy(broken)
    first, *lines = str(found.value).splitlines()
    assert first.startswith("schedule ")
    assert any("join: train 0, 1" in line for line in lines)


@dataclass(frozen=True)
class Sound(MergeRule):
    """Each rule below breaks one of its promises."""

    by_ranges: ClassVar[bool] = True
    by_mean: ClassVar[bool] = True
    vectors: ClassVar[tuple[str, ...]] = ("sum",)

    def merge(
        self,
        center: Vector,
        contributions: Sequence[Contribution],
        rate: float,
        iteration: int,
        state: State = NO_STATE,
    ) -> None:
        mean = np.empty_like(center)
        mean_into(mean, contributions)
        state.vectors["sum"] += mean
        center += np.float32(0.1) * state.vectors["sum"]
        self.more(center, contributions, state)

    def more(self, center: Vector, contributions: Sequence[Contribution], state: State) -> None:
        """What is wrong with it."""


class OfTheNorm(Sound):
    def more(self, center: Vector, contributions: Sequence[Contribution], state: State) -> None:
        center *= 1 - 1e-3 * np.linalg.norm(center)


class OfTheFirst(Sound):
    def more(self, center: Vector, contributions: Sequence[Contribution], state: State) -> None:
        center += contributions[0].vector


class Hidden(Sound):
    kept: ClassVar[list[float]] = []

    def more(self, center: Vector, contributions: Sequence[Contribution], state: State) -> None:
        self.kept.append(1.0)
        center += len(self.kept)


class Writes(Sound):
    def more(self, center: Vector, contributions: Sequence[Contribution], state: State) -> None:
        contributions[0].vector[:] = 0


class Renames(Sound):
    def more(self, center: Vector, contributions: Sequence[Contribution], state: State) -> None:
        state.vectors["other"] = center.copy()


class Explodes(Sound):
    def more(self, center: Vector, contributions: Sequence[Contribution], state: State) -> None:
        center /= np.float32(0.0) * center


def test_a_rule_that_breaks_no_promise_is_sound() -> None:
    check_rule(Sound())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (OfTheNorm, "OfTheNorm says by_ranges, but merging the values 0 to 333 apart is another"),
        (OfTheFirst, "OfTheFirst says by_mean, but merging the mean"),
        (Hidden, "Hidden makes another center of the same results"),
        (Writes, "read-only"),
        (Renames, "Renames changes the names of its state"),
        (Explodes, "Explodes makes a center that is not finite"),
    ],
)
def test_a_broken_promise_is_found(broken: type[MergeRule], words: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=words):
        check_rule(broken())
