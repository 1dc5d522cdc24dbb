"""The memory that the workers of a host share while their scripts average gradients (`speedo.worker.driven_team`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from speedo.exchange.vector import Vector
from speedo.worker.team_memory import LINE_BYTES, Part, bytes_of, laid_out, padded

MOST_DEALT: Final = 64  # rounds at once

# What each member says, in int64: two cache lines.
COMES, SAMPLES, BAD, EPOCH, DEALS, ENDS, MADE, OPTIMIZER, SEVERAL, RATES, OWN, SAME = range(12)
_SAID: Final = 16
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
        vectors, rows, deal, state = laid_out(memory, _parts(members, here, size, blobs))
        mean, *gradients = (vector[:size] for vector in vectors)
        said = rows[:, :, : 8 * _SAID].view(np.int64)
        present = rows[:, :, 8 * _SAID : 8 * _SAID + blobs]
        return cls(mean, tuple(gradients), rows, said, present, deal, state)

    @staticmethod
    def bytes_for(members: int, here: int, size: int, blobs: int) -> int:
        return bytes_of(_parts(members, here, size, blobs))

    @property
    def dealt(self) -> npt.NDArray[np.int64]:
        """The deal by round and member, of three numbers each."""
        return self.deal[ROUNDS:].reshape(MOST_DEALT, -1, _NUMBERS)


def _parts(members: int, here: int, size: int, blobs: int) -> list[Part]:
    return [
        ((here + 1, padded(size)), np.float32),
        ((2, members, -(-(8 * _SAID + blobs) // LINE_BYTES) * LINE_BYTES), np.uint8),
        ((ROUNDS + MOST_DEALT * members * _NUMBERS,), np.int64),
        ((1,), np.int64),
    ]
