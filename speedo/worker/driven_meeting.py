"""What a member of a script's team comes to a meeting for, what follows, and what it brings."""

from __future__ import annotations

import enum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from speedo.exchange.vector import Vector


class Comes(enum.IntEnum):
    """What a member comes to a meeting for."""

    GRADIENT = 1  # a backward pass has ended
    STEP = 2
    IDLE = 3  # the others train the last records of an epoch
    ASK = 4  # it has no records left
    LEAVE = 5  # it will pause: the turn ends with the next step
    SUM = 6  # with a vector of its own


class Follows(enum.IntEnum):
    """What a meeting came to."""

    NOTHING = 0
    MEAN = 1  # the gradients are the mean of all
    STEP = 2  # of the optimizer `DrivenTeam.steps_of`
    SUM = 3  # the vectors of those that came with one are their sum


class Optimizers(Protocol):
    """The optimizers of a member's script, and its models' gradients; vectors are of the layout of the weights."""

    blobs: int  # parameters and buffers of the layout
    made: int  # steps of all optimizers

    def take_gradients(self, out: Vector, present: npt.NDArray[np.uint8]) -> None:
        """Copy gradients and moving averages into `out`; `present` says which parameters have a gradient."""
        ...

    def set_gradients(self, mean: Vector, present: npt.NDArray[np.uint8]) -> None:
        """The reverse."""
        ...

    def is_finite(self) -> bool:
        """Whether the gradients are."""
        ...

    def state(self) -> bytes:
        """Their state, for another member's `load_state`."""
        ...

    def load_state(self, state: bytes) -> None: ...

    def rates_key(self) -> int:
        """A checksum of what `rates` has, without its tensors."""
        ...

    def rates(self) -> bytes:
        """Learning rates and the like, and the state of schedulers, for another member's `load_rates`."""
        ...

    def load_rates(self, state: bytes) -> None: ...
