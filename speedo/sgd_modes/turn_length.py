"""How many local steps a turn has: a number, a schedule by iterations as in `1,10@500`, a norm that ends it earlier."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pydantic_core import PydanticCustomError

from speedo.bounds import LARGEST_COUNT, LARGEST_INT32, digits, said, whole_number

_NORM: Final = re.compile(r"\s*norm\s*>\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class TurnLength:
    """`stages` are (iteration of the run, steps from then on), the first from 0.

    With a `norm` above 0 a turn ends once what it gathered has a larger L2 norm; the steps are then the most.
    """

    stages: tuple[tuple[int, int], ...]
    norm: float = 0.0

    def at(self, iteration: int) -> int:
        """Steps of a turn that is issued at this iteration."""
        return next(steps for first, steps in reversed(self.stages) if first <= iteration)

    def next_change(self, iteration: int) -> int | None:
        """The iteration of the next stage."""
        return next((first for first, _ in self.stages if first > iteration), None)


@lru_cache(maxsize=256)
def as_turn_length(length: int | TurnLength) -> TurnLength:
    """A number of steps as a schedule without changes."""
    return length if isinstance(length, TurnLength) else TurnLength(((0, length),))


def turn_length(steps: int | str, sync_when: str | None) -> int | TurnLength:
    """The length of turns by these options, which `check_steps` and `check_sync_when` have passed."""
    norm = 0.0 if sync_when is None else parse_norm(sync_when)
    if isinstance(steps, int) and not norm:
        return steps
    return TurnLength(parse_stages(str(steps)), norm)


def parse_stages(text: str) -> tuple[tuple[int, int], ...]:
    """Parse `1,10@500`: 1 step, 10 from iteration 500 on. Raises `ValueError`."""
    first, *later = text.split(",")
    stages = [(0, _whole(first))]
    for part in later:
        steps, at, iteration = part.partition("@")
        if not at or _whole(iteration) <= stages[-1][0]:
            raise ValueError(text)
        stages.append((_whole(iteration), _whole(steps)))
    return tuple(stages)


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
        return steps if isinstance(steps, int) else max(n for _, n in parse_stages(steps))
    except ValueError:
        return 0


def as_steps(value: Any) -> Any:
    """What was given for local steps: a number in digits becomes one, a text with `@` stays a schedule."""
    if type(value) is int or (isinstance(value, str) and "@" in value):
        return value
    number = whole_number(value) if isinstance(value, str) else None
    if number is None:
        raise PydanticCustomError("int_parsing", "no whole number")
    return number


class Steps:
    """A number of steps, or a schedule of them."""

    def __call__(self, name: str, value: int | str) -> list[str]:
        if isinstance(value, int):
            stages: tuple[tuple[int, int], ...] = ((0, value),)
        else:
            try:
                stages = parse_stages(value)
            except ValueError:
                return [
                    f"{name} is {said(value)}; use a number, or a schedule with rising iterations, as in 1,10@500"
                ]
        steps = [steps for _, steps in stages]
        if min(steps) < 1:
            return [f"{name} is {_said(value)}: a turn needs a step; use 1 or more"]
        if max(steps) > LARGEST_COUNT:
            return [f"{name} is {_said(value)}: use at most {LARGEST_COUNT}"]
        if stages[-1][0] > LARGEST_INT32:
            return [f"{name} is {_said(value)}: use iterations of at most {LARGEST_INT32}"]
        return []

    def __str__(self) -> str:
        return "1 or more, or a schedule"


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
