"""The memory that the workers of a host share while their scripts average gradients (`speedo.worker.driven_team`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from speedo.exchange.vector import Vector
from speedo.worker.team_memory import ALIGNED

MOST_DEALT: Final = 64  # rounds at once

# What each member says, in int64: a cache line.
COMES, SAMPLES, BAD, EPOCH, DEALS, ENDS, MADE = range(7)
_SAID: Final = 8
# Of the deal: a head, then a lease for each round and member.
LENGTH, SHORT, ROUNDS = range(3)
_NUMBERS: Final = 3


@dataclass(frozen=True)
class TeamSpace:
    """Rows, and the deal, are those of all members of the team; gradients those of the members on this host.

    `rows` has a part for even and one for odd times that all come: who comes the next time writes there, while others
    still look at this one. `said` and `present` are views of it.
    """

    mean: Vector
    gradients: tuple[Vector, ...]
    rows: npt.NDArray[np.uint8]  # by parity, member
    said: npt.NDArray[np.int64]  # by parity, member, field
    present: npt.NDArray[np.uint8]  # by parity, member, blob
    deal: npt.NDArray[np.int64]  # head, then epoch, start, stop by round and member
    state: npt.NDArray[np.int64]  # bytes of the optimizer's state that is handed on

    @classmethod
    def over(cls, memory: memoryview, members: int, here: int, size: int, blobs: int) -> TeamSpace:
        """Of `members`, `here` on this host, over memory of `bytes_for` bytes."""
        at = 0

        def part(count: int, kind: type[np.generic]) -> npt.NDArray[Any]:
            nonlocal at
            found = np.frombuffer(memory, kind, count=count, offset=at)
            at += _whole_lines(found.nbytes)
            return found

        vectors = [part(size, np.float32) for _ in range(here + 1)]
        rows = part(2 * members * _row(blobs), np.uint8).reshape(2, members, _row(blobs))
        return cls(
            vectors[0],
            tuple(vectors[1:]),
            rows,
            rows[:, :, : 8 * _SAID].view(np.int64),
            rows[:, :, 8 * _SAID : 8 * _SAID + blobs],
            part(ROUNDS + MOST_DEALT * members * _NUMBERS, np.int64),
            part(1, np.int64),
        )

    @staticmethod
    def bytes_for(members: int, here: int, size: int, blobs: int) -> int:
        parts = (
            *(here + 1) * (4 * size,),
            2 * members * _row(blobs),
            8 * (ROUNDS + MOST_DEALT * members * _NUMBERS),
            8,
        )
        return sum(map(_whole_lines, parts))

    @property
    def dealt(self) -> npt.NDArray[np.int64]:
        """The deal by round and member, of three numbers each."""
        return self.deal[ROUNDS:].reshape(MOST_DEALT, -1, _NUMBERS)


def _row(blobs: int) -> int:
    """Bytes of a member's row."""
    return _whole_lines(8 * _SAID + blobs)


def _whole_lines(nbytes: int) -> int:
    line = 4 * ALIGNED
    return -(-nbytes // line) * line
