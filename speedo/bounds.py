"""How far numbers may go, by what takes them: Caffe's 32-bit fields, its float, the clocks of the system."""

from __future__ import annotations

import math
import re
import struct
from typing import Final

LARGEST_INT32: Final = (
    2**31 - 1
)  # max_iter and the like are int32 in caffe.proto; shapes are int in Caffe
LARGEST_SEED: Final = 2**32 - 1  # random_seed is int64, but Caffe's generators take 32 bits of it
LARGEST_COUNT: Final = (
    1_000_000  # of steps in a turn, restarts in a row: beyond it a slip is likelier than a wish
)
LARGEST_SECONDS: Final = 1_000_000.0  # twelve days; poll and select take no more than 2^31 ms
LARGEST_FLOAT32: Final = 3.4028234663852886e38

_WHOLE: Final = re.compile(r"\s*[0-9]{1,18}\s*")


def whole(name: str, value: int | None, least: int, most: int, note: str = "") -> list[str]:
    """What is wrong with this number, unless it lies between the two: its value, the bound, the remedy."""
    if value is None or least <= value <= most:
        return []
    bound = f"{least} or more" if value < least else f"at most {most}{note}"
    return [f"{name} is {digits(value)}: use {bound}"]


def seconds(name: str, value: float | None, *, zero: str = "") -> list[str]:
    """The same for a time; `zero` says what 0 means, where it is allowed."""
    if value is None or 0 < value <= LARGEST_SECONDS or (zero and value == 0):
        return []
    if value > LARGEST_SECONDS:
        return [f"{name} is {value}: use at most {LARGEST_SECONDS:.0f} seconds"]
    bound = f"use seconds, or 0 for {zero}" if zero else "use a number of seconds above 0"
    return [f"{name} is {value}: {bound}"]


def float32(name: str, value: float | None, remedy: str, *, zero: bool) -> list[str]:
    """The same for what Caffe keeps as a float: above 0, or also 0; `remedy` is for what is below or no number."""
    if value is None:
        return []
    if math.isfinite(value) and (value > 0 or (zero and value == 0)):
        if (value == 0 or in_float32(value) > 0) and in_float32(value) < math.inf:
            return []
        return [f"{name} is {value}: use a number that a float32 holds, 1.5e-45 to 3.4e+38"]
    return [f"{name} is {value}: use {remedy}"]


def in_float32(value: float) -> float:
    """The value as Caffe keeps it: rounded, 0 where it is too small, infinite where it is too large."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def whole_number(text: str) -> int | None:
    """The number that a text of plain digits stands for; None for any other text, or more than 18 digits."""
    return int(text) if _WHOLE.fullmatch(text) else None


def digits(value: int) -> str:
    """The number, or how long it is: Python refuses to write very long ones."""
    if abs(value) < 10**40:
        return str(value)
    return f"a number of some {round(value.bit_length() * math.log10(2))} digits"


def said(value: object) -> str:
    """The value as a message shows it, cut where it is long."""
    try:
        text = digits(value) if type(value) is int else repr(value)
    except (
        ValueError,
        RecursionError,
    ):  # Python refuses to write so long a number, or so deep a list
        text = f"a {type(value).__name__} beyond words"
    return text if len(text) <= 100 else f"{text[:90]}..."
