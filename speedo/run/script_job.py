"""The work of a run that trains a user's own script, and the model that its worker 0 brings."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar, Final

from speedo.exchange.vector import Blob, Layout
from speedo.system.bounds import LARGEST_INT32

NO_LIMIT: Final = LARGEST_INT32  # iterations of a script, which itself ends the run


@dataclass(frozen=True, slots=True)
class ScriptJob:
    """A command that every worker runs in `folder`, beside what a run reads of a `SolverSpec`.

    `words` are the command; without them each host brings its own. `path` is its name for people. `batch` are the
    records of one step: 1 until worker 0 has brought its model.
    """

    path: Path
    words: tuple[str, ...] = ()
    folder: str = ""  # the working directory
    in_rounds: bool = False  # whether the mode merges the steps of all workers at once
    # Why its workers cannot exchange gradients before each step; empty if they can.
    no_gradients: str = ""
    batch: int = 1
    max_iter: int = NO_LIMIT
    first_epoch: int = 0  # the first that is not trained to its end, of a run that is resumed
    iter_size: ClassVar[int] = 1
    has_test: ClassVar[bool] = False
    test_interval: ClassVar[int] = 0
    test_initialization: ClassVar[bool] = False
    snapshot: ClassVar[int] = 0

    @property
    def command(self) -> list[str]:
        """What starts it on this host. The Python that has SpeeDO here is meant by `python`."""
        first, *others = self.words
        return [sys.executable if first in ("python", "python3") else first, *others]

    @property
    def batch_size(self) -> int:
        """Records of one step."""
        return self.batch


@dataclass(frozen=True, slots=True)
class FirstModel:
    """The parameters of a script's model and the records of one step, as a worker brings them when it joins.

    Worker 0 has put the values into the store by then, with `put_history` at version 0: float32, end to end.
    """

    blobs: tuple[Blob, ...]
    batch: int

    @property
    def layout(self) -> Layout:
        """The blobs as the center holds them."""
        return Layout(self.blobs)

    def differences(self, layout: Layout) -> list[str]:
        """The blobs in which this model differs from the run's `layout`, in words."""
        return [
            f"{_in_words(mine)} instead of {_in_words(first)}"
            for mine, first in zip_longest(self.blobs, layout.blobs)
            if mine != first
        ]


def _in_words(blob: Blob | None) -> str:
    if blob is None:
        return "no parameter"
    return f"{blob.name} of shape {blob.shape}{' (a statistic)' if blob.statistic else ''}"
