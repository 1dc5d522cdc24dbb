"""The memory that the members of a solver's team share on a host."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from speedo.exchange.vector import Layout, Vector
from speedo.system.memory_fence import memory_fence

ALIGNED: Final = 16  # float32 values of a cache line: no two members write to the same
LINE_BYTES: Final = 64  # of a cache line
STATE: Final = 2  # numbers that name the state of a member's solver
ROW: Final = STATE + 1  # and the checksum of its host's center, from the first member of a host

Numbers = npt.NDArray[np.int64]
Part = tuple[tuple[int, ...], type[np.generic]]


def bytes_of(parts: Sequence[Part]) -> int:
    """How many bytes these arrays need, each in cache lines of its own."""
    return sum(map(_whole_lines, parts))


def laid_out(memory: memoryview | bytearray, parts: Sequence[Part]) -> list[npt.NDArray[Any]]:
    """These arrays, one behind another over memory of `bytes_of` bytes."""
    found, at = list[npt.NDArray[Any]](), 0
    for part in parts:
        shape, kind = part
        flat = np.frombuffer(memory, kind, count=math.prod(shape), offset=at)
        found.append(flat.reshape(shape))
        at += _whole_lines(part)
    return found


def _whole_lines(part: Part) -> int:
    return -(-math.prod(part[0]) * np.dtype(part[1]).itemsize // LINE_BYTES) * LINE_BYTES


@dataclass(frozen=True)
class TeamMemory:
    """`center`, which later has the mean gradient; a payload and a flag for each member of the host; all of them views.

    A flag is 0 as long as the member's payload is finite. `states` has a row of `ROW` numbers for each member of the
    team, `length` one number: the bytes of a solver's state that one of them hands to others.
    `ready` has for each member of the host, and each blob, the number of the last round whose gradient is there.
    `factors` is room for those of all members (`speedo.exchange.factors.FactorSpace`).
    At meetings all see what all have written; what is seen between two of them is told after the `fence`.
    """

    center: Vector
    payloads: tuple[Vector, ...]
    flags: np.ndarray
    states: Numbers
    length: Numbers
    ready: Numbers
    factors: Vector
    fence: Callable[[], None]

    @classmethod
    def over(
        cls,
        memory: memoryview | bytearray,
        here: int,
        everywhere: int,
        layout: Layout,
        factors: int = 0,
    ) -> TeamMemory:
        """For so many members, with vectors of this layout, and all factors, in memory of `bytes_for` bytes."""
        parts = _parts(here, everywhere, layout, factors)
        vectors, flags, states, length, ready, room = laid_out(memory, parts)
        center, *payloads = (vector[: layout.size] for vector in vectors)
        fence = memory_fence()
        return cls(center, tuple(payloads), flags[:, 0], states, length, ready, room, fence)

    def say_ready(self, place: int, blobs: slice, number: int) -> None:
        """Show the first member of the host that this member's gradients of these blobs are there, in this round."""
        self.fence()
        self.ready[place, blobs] = number

    @staticmethod
    def bytes_for(here: int, everywhere: int, layout: Layout, factors: int = 0) -> int:
        return bytes_of(_parts(here, everywhere, layout, factors))


def _parts(here: int, everywhere: int, layout: Layout, factors: int) -> list[Part]:
    return [
        ((here + 1, padded(layout.size)), np.float32),
        ((here, LINE_BYTES), np.uint8),
        ((everywhere, ROW), np.int64),
        ((1,), np.int64),
        ((here, len(layout.blobs)), np.int64),
        ((factors,), np.float32),
    ]


def padded(size: int) -> int:
    """So many float32 values and the rest of their last cache line."""
    return -(-size // ALIGNED) * ALIGNED


def stretch_of(place: int, shares: Sequence[int], size: int) -> slice:
    """The values that the member at this place sums: by the members' `shares`, whole cache lines."""
    lines, whole = padded(size) // ALIGNED, sum(shares)
    first, last = (lines * sum(shares[:at]) // whole for at in (place, place + 1))
    return slice(first * ALIGNED, min(last * ALIGNED, size))


def is_finite(vector: Vector) -> bool:
    """Whether its values are, and the sum of their squares."""
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(float(np.dot(vector, vector)))
