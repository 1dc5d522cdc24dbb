"""The declaration of an option, the bounds of numbers (Caffe's 32-bit fields, its float, times), two choices."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from speedo.errors import hide_secrets

# `max_iter` and the like are int32 in caffe.proto; shapes are int in Caffe
LARGEST_INT32: Final = 2**31 - 1
LARGEST_SEED: Final = 2**32 - 1  # random_seed is int64, but Caffe's generators take 32 bits of it
# Of steps in a turn, restarts in a row: beyond it a slip is likelier than a wish.
LARGEST_COUNT: Final = 1_000_000
LARGEST_SECONDS: Final = 1_000_000.0  # twelve days; poll and select take no more than 2^31 ms

EngineName = Literal["caffe", "torch"]
DataShare = Literal["shard", "own", "offset", "same", "once"]
"""`shard`: worker k of n reads every n-th record, from the k-th on. `own`: the same, but of the records on its host,
among the workers of that host. `offset`: every worker reads all records, worker k of n from k/n of them on. `same`:
every worker reads all records, from the first on. `once`: the master says which records each turn reads."""

Overlap = Literal["far", "all", "none"]
"""Which workers fetch and publish in the background: those on other machines, all, none."""

_WHOLE: Final = re.compile(r"\s*[0-9]{1,18}\s*")


# Called with the name and the value of an option; answers what is wrong, a sentence each, with the remedy.
Bound = Callable[[str, Any], list[str]]


@dataclass(frozen=True)
class Option:
    """The declaration of an option beside name, type and default, as `Annotated[int, Option(...)] = 2`.

    `usual` describes the default where the value cannot (None: as the solver says); `source` is where the default
    comes from. `flags` are the names on the command line, if they do not follow from the field's. `bare` is the value
    of the flag without one. `below_workers` is the consequence of a value that is not below the number of workers.
    With `place` it names a file or an address, which is not taken from a stranger's run. On the command line it is a
    part of the option `given_with`, as in `--engine torch,precision=bfloat16`.
    """

    help: str
    bound: Bound | None = None
    usual: str = ""
    source: str = ""
    group: str = ""
    metavar: str = ""
    flags: str = ""
    below_workers: str = ""
    bare: str = ""
    place: bool = False
    given_with: str = ""


def declared(metadata: Iterable[object]) -> Option:
    """The declaration in the annotations of a field's type; an empty one if there is none."""
    return next((one for one in metadata if isinstance(one, Option)), Option(""))


@dataclass(frozen=True)
class Whole:
    """Whole numbers from `least` to `most`. `why` explains the lower bound, `note` the upper one."""

    least: int
    most: int
    why: str = ""
    note: str = ""

    def __call__(self, name: str, value: int) -> list[str]:
        if self.least <= value <= self.most:
            return []
        if self.most < LARGEST_COUNT:
            bound = f"use {self}{self.note}"
        elif value < self.least:
            bound = f"{self.why}use {self}"
        else:
            bound = f"use at most {self.most}{self.note}"
        return [f"{name} is {digits(value)}: {bound}"]

    def __str__(self) -> str:
        return (
            f"{self.least} or more"
            if self.most >= LARGEST_COUNT
            else f"{self.least} to {self.most}"
        )


@dataclass(frozen=True)
class WholeOr:
    """A text: this `word`, or a whole number from `least` to `most`."""

    word: str
    least: int
    most: int

    def __call__(self, name: str, value: str) -> list[str]:
        number = whole_number(value)
        if value == self.word or (number is not None and self.least <= number <= self.most):
            return []
        return [f"{name} is {said(value)}: use {self}"]

    def __str__(self) -> str:
        return f"{self.least} to {self.most}, or {self.word}"


@dataclass(frozen=True)
class Seconds:
    """A time in seconds. `zero` says what 0 means, where it is allowed."""

    zero: str = ""

    def __call__(self, name: str, value: float) -> list[str]:
        if 0 < value <= LARGEST_SECONDS or (self.zero and value == 0):
            return []
        if value > LARGEST_SECONDS:
            return [f"{name} is {value}: use at most {LARGEST_SECONDS:.0f} seconds"]
        bound = (
            f"use seconds, or 0 for {self.zero}" if self.zero else "use a number of seconds above 0"
        )
        return [f"{name} is {value}: {bound}"]

    def __str__(self) -> str:
        return f"seconds; 0: {self.zero}" if self.zero else "seconds above 0"


@dataclass(frozen=True)
class Float32:
    """What Caffe stores as a float: above 0, or also 0. `remedy` is for other values."""

    remedy: str
    zero: bool

    def __call__(self, name: str, value: float) -> list[str]:
        if math.isfinite(value) and (value > 0 or (self.zero and value == 0)):
            if (value == 0 or in_float32(value) > 0) and in_float32(value) < math.inf:
                return []
            return [f"{name} is {value}: use a number that a float32 holds, 1.5e-45 to 3.4e+38"]
        return [f"{name} is {value}: use {self.remedy}"]

    def __str__(self) -> str:
        return "0 or more" if self.zero else "above 0"


@dataclass(frozen=True)
class Interval:
    """Numbers between `low` and `high`, written as in `(0, 1)` or `[0, 1)`: a bracket includes its end."""

    text: str
    remedy: str

    def __call__(self, name: str, value: float) -> list[str]:
        low, high = (float(end) for end in self.text[1:-1].split(","))
        above = value >= low if self.text[0] == "[" else value > low
        below = value <= high if self.text[-1] == "]" else in_float32(value) < high
        return [] if above and below else [f"{name} is {value}: {self.remedy}"]

    def __str__(self) -> str:
        return self.text


def in_float32(value: float) -> float:
    """The value as Caffe stores it: rounded, 0 if it is too small, infinite if it is too large."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def whole_number(text: str) -> int | None:
    """The number that a text of plain digits stands for; None for any other text, or more than 18 digits."""
    return int(text) if _WHOLE.fullmatch(text) else None


def digits(value: int) -> str:
    """The number as text, or its length: Python refuses to write very long ones."""
    if abs(value) < 10**40:
        return str(value)
    return f"a number of some {round(value.bit_length() * math.log10(2))} digits"


def said(value: object) -> str:
    """The value as a message shows it, truncated if it is long."""
    try:
        # Hidden first: what is cut off may be the sign that shows a password.
        text = digits(value) if type(value) is int else hide_secrets(repr(value))
    except (ValueError, RecursionError):  # Python writes no number so long, no list so deep
        text = f"a {type(value).__name__} beyond words"
    return text if len(text) <= 100 else f"{text[:90]}..."
