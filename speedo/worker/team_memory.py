"""The memory that the members of a solver's team share on a host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from speedo.exchange.vector import Layout, Vector
from speedo.system.memory_fence import memory_fence

ALIGNED: Final = 16  # float32 values of a cache line: no two members write to the same
FLAG_BYTES: Final = 64  # a cache line for each member
STATE: Final = 2  # numbers that name the state of a member's solver
ROW: Final = STATE + 1  # and the checksum of its host's center, from the first member of a host

Numbers = npt.NDArray[np.int64]


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
        size, blobs = layout.size, len(layout.blobs)
        values = np.frombuffer(memory, np.float32, count=(here + 1) * _padded(size))
        vectors = [values[at * _padded(size) : at * _padded(size) + size] for at in range(here + 1)]
        flags = np.frombuffer(memory, np.uint8, offset=values.nbytes, count=here * FLAG_BYTES)
        numbers = np.frombuffer(
            memory,
            np.int64,
            offset=values.nbytes + flags.nbytes,
            count=everywhere * ROW + 1 + here * blobs,
        )
        states, rest = numbers[: everywhere * ROW].reshape(everywhere, ROW), everywhere * ROW
        room = np.frombuffer(
            memory, np.float32, count=factors, offset=values.nbytes + flags.nbytes + numbers.nbytes
        )
        return cls(
            vectors[0],
            tuple(vectors[1:]),
            flags[::FLAG_BYTES],
            states,
            numbers[rest : rest + 1],
            numbers[rest + 1 :].reshape(here, blobs),
            room,
            memory_fence(),
        )

    def say_ready(self, place: int, blobs: slice, number: int) -> None:
        """Show the first member of the host that this member's gradients of these blobs are there, in this round."""
        self.fence()
        self.ready[place, blobs] = number

    @staticmethod
    def bytes_for(here: int, everywhere: int, layout: Layout, factors: int = 0) -> int:
        values = (here + 1) * _padded(layout.size) + factors
        numbers = everywhere * ROW + 1 + here * len(layout.blobs)
        return values * 4 + here * FLAG_BYTES + numbers * 8


def _padded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def stretch_of(place: int, shares: Sequence[int], size: int) -> slice:
    """The values that the member at this place sums: by the members' `shares`, whole cache lines."""
    lines, whole = _padded(size) // ALIGNED, sum(shares)
    first, last = (lines * sum(shares[:at]) // whole for at in (place, place + 1))
    return slice(first * ALIGNED, min(last * ALIGNED, size))
