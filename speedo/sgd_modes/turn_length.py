"""How many local steps a turn has: a number, a schedule by iterations as in `1,10@500`, as many as the loss asks for,
as in `adaptive:10`; and a norm that ends it earlier."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, sqrt
from typing import Any, Final, TypeAlias

from pydantic_core import PydanticCustomError

from speedo.system.bounds import LARGEST_COUNT, LARGEST_INT32, digits, said, whole_number

WINDOW: Final = 100  # iterations; the mean loss of this many batches of usual size is steady
_NORM: Final = re.compile(r"\s*norm\s*>\s*(\S+)\s*")
_ADAPTIVE: Final = re.compile(r"adaptive:([0-9]{1,18})(?:/([0-9]{1,18}))?")


@dataclass(frozen=True, slots=True)
class TurnLength:
    """`stages` are (iteration of the run, steps from then on), the first from 0.

    With a `norm` above 0 a turn ends once what it gathered has a larger L2 norm; the steps are then the most.
    """

    stages: tuple[tuple[int, int], ...]
    norm: float = 0.0

    def at(self, iteration: int) -> int:
        """Steps of a turn that is issued at this iteration."""
        steps = self.stages[0][1]
        for first, later in self.stages[1:]:
            if first <= iteration:
                steps = later
        return steps

    def next_change(self, iteration: int) -> int | None:
        """The iteration of the next stage."""
        return next((first for first, _ in self.stages if first > iteration), None)

    @property
    def most(self) -> int:
        """The largest number of steps."""
        return max(steps for _, steps in self.stages)

    @property
    def state(self) -> LengthState | None:
        """What a resumed run needs besides the iteration: nothing."""
        return None

    def merged(self, results: Iterable[tuple[float, int]], before: int, now: int) -> None:
        """Results were merged, on which these lengths do not depend."""


LengthState: TypeAlias = tuple[int, float | None, float, int]


@dataclass(eq=False, slots=True)
class AdaptiveLength:
    """tau = ceil(sqrt(F(x) / F(x0)) tau0), decided at the end of each `window` of iterations.

    Wang and Joshi, Adaptive Communication Strategies to Achieve the Best Error-Runtime Trade-off in Local-Update SGD,
    SysML 2019, section 4: long turns at first, shorter ones as the loss falls. F(x) is the mean loss of the samples
    merged in the last window, F(x0) that of the first one (`first`). tau is at most tau0 (`longest`), which it is in
    the first window. `loss` is the sum over the `samples` merged in the present window; `steps` 0 means tau0.
    """

    longest: int
    window: int = WINDOW
    norm: float = 0.0
    steps: int = 0
    first: float | None = None
    loss: float = 0.0
    samples: int = 0

    def at(self, iteration: int) -> int:
        """Steps of a turn that is issued now."""
        return min(self.steps or self.longest, self.longest)

    @property
    def most(self) -> int:
        """The largest number of steps."""
        return self.longest

    @property
    def state(self) -> LengthState:
        """What a resumed run needs: the present steps, F(x0), and the sums of the present window."""
        return self.steps, self.first, self.loss, self.samples

    @state.setter
    def state(self, state: LengthState) -> None:
        self.steps, self.first, self.loss, self.samples = state

    def next_change(self, iteration: int) -> int | None:
        """The end of the window that this iteration is in."""
        return (iteration // self.window + 1) * self.window

    def merged(self, results: Iterable[tuple[float, int]], before: int, now: int) -> None:
        """Results of this mean loss and this many samples were merged, which led from one iteration to another."""
        for loss, samples in results:
            self.loss += loss * samples
            self.samples += samples
        if now // self.window == before // self.window:
            return
        mean, self.loss, self.samples = self.loss / self.samples, 0.0, 0
        self.first = mean if self.first is None else self.first
        ratio = max(mean, 0.0) / self.first if self.first > 0 else 1.0  # else there is no measure
        self.steps = max(1, min(self.longest, ceil(sqrt(ratio) * self.longest)))


Length: TypeAlias = int | TurnLength | AdaptiveLength  # of a turn, in local steps


def as_turn_length(length: Length) -> TurnLength | AdaptiveLength:
    """A number of steps as a schedule without changes."""
    return _constant(length) if isinstance(length, int) else length


@lru_cache(maxsize=256)
def _constant(steps: int) -> TurnLength:
    return TurnLength(((0, steps),))


def turn_length(steps: int | str, sync_when: str | None) -> Length:
    """The length of turns by these options, which `check_steps` and `check_sync_when` have passed."""
    norm = 0.0 if sync_when is None else parse_norm(sync_when)
    return steps if isinstance(steps, int) and not norm else parse_length(steps, norm)


def parse_length(steps: int | str, norm: float = 0.0) -> TurnLength | AdaptiveLength:
    """Parse `1,10@500`: 1 step, 10 from iteration 500 on; or `adaptive:10/50`: 10 steps at first, decided every 50
    iterations. Raises `ValueError`."""
    if isinstance(steps, int):
        return TurnLength(((0, steps),), norm)
    if match := _ADAPTIVE.fullmatch(steps.strip()):
        return AdaptiveLength(int(match[1]), int(match[2] or WINDOW), norm)
    first, *later = steps.split(",")
    stages = [(0, _whole(first))]
    for part in later:
        number, at, iteration = part.partition("@")
        if not at or _whole(iteration) <= stages[-1][0]:
            raise ValueError(steps)
        stages.append((_whole(iteration), _whole(number)))
    return TurnLength(tuple(stages), norm)


def parse_norm(text: str) -> float:
    """Parse `norm>0.5`; raises `ValueError`."""
    match = _NORM.fullmatch(text)
    value = float(match[1]) if match else 0.0
    if not 0.0 < value < float("inf"):
        raise ValueError(text)
    return value


def most_steps(steps: int | str) -> int:
    """The largest number of steps in a schedule; 0 if it is none."""
    try:
        return parse_length(steps).most
    except ValueError:
        return 0


def as_steps(value: Any) -> Any:
    """What was given for local steps: a number in digits becomes one, a text with `@` or `adaptive` stays one."""
    if type(value) is int or (isinstance(value, str) and ("@" in value or "adaptive" in value)):
        return value
    number = whole_number(value) if isinstance(value, str) else None
    if number is None:
        raise PydanticCustomError("int_parsing", "no whole number")
    return number


class Steps:
    """A number of steps, or a schedule of them."""

    def __call__(self, name: str, value: int | str) -> list[str]:
        try:
            length = parse_length(value)
        except ValueError:
            forms = "a number, a schedule with rising iterations, as in 1,10@500, or adaptive:10"
            return [f"{name} is {said(value)}; use {forms}"]
        if isinstance(length, TurnLength):
            stages = length.stages
        else:
            stages = ((0, length.longest), (length.window, 1))
            if length.window < 1:
                return [f"{name} is {_said(value)}: a window needs an iteration; use 1 or more"]
        steps = [steps for _, steps in stages]
        if min(steps) < 1:
            return [f"{name} is {_said(value)}: a turn needs a step; use 1 or more"]
        if max(steps) > LARGEST_COUNT:
            return [f"{name} is {_said(value)}: use at most {LARGEST_COUNT}"]
        if stages[-1][0] > LARGEST_INT32:
            return [f"{name} is {_said(value)}: use iterations of at most {LARGEST_INT32}"]
        return []

    def __str__(self) -> str:
        return "1 or more, a schedule, or adaptive"


def check_sync_when(name: str, value: str) -> list[str]:
    """A norm."""
    try:
        parse_norm(value)
    except ValueError:
        return [f"{name} is {said(value)}; use norm> and a number above 0, as in norm>0.5"]
    return []


def _whole(text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise ValueError(text)
    return number


def _said(value: int | str) -> str:
    return digits(value) if isinstance(value, int) else said(value)
