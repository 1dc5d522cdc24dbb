"""Loops of libraries as workers of a run, a file for each library; here is what they share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from speedo.run.script.joined_run import current
from speedo.run.script_link import PLACE, VARIABLE

# In a script that is no worker of a run integrations change nothing.
IN_RUN = VARIABLE in os.environ
RANK, SIZE = map(int, os.environ.get(PLACE, "0/1").split("/"))


class SharedLoader:
    """This worker's batches of a DataLoader; each iteration is the run's next epoch with records for this worker.

    `epochs` is how many the library wants in all, 0 if that is not known.
    """

    def __init__(self, loader: Any, epochs: int = 0) -> None:
        self.loader, self.epochs = loader, epochs
        self._numbers: Iterator[int] | None = None

    def __len__(self) -> int:
        """Batches in an epoch while all workers are there."""
        return max(1, -(-(len(self.loader) - RANK % SIZE) // SIZE))

    def __iter__(self) -> Iterator[Any]:
        if self._numbers is None:
            self._numbers = current().epochs(self.epochs) if self.epochs else iter(int, 1)
        for _ in self._numbers:
            batch = None
            for batch in current().share(self.loader):
                yield batch
            if batch is not None or not self.epochs:
                return

    def rest(self) -> Iterator[Any]:
        """After the last epoch of a library that trains `len(self)` batches in each: what no worker has trained."""
        if self._numbers is not None and self.epochs and next(self._numbers, None) is None:
            yield from current().share(self.loader)


def compute_before_step(optimizer: Any, batches: int = 1) -> None:
    """In a run call the closure of a step before it, so that gradients can be exchanged; it returns loss / batches."""

    def hook(_: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        for closure in (*args[1:], options.get("closure")):
            if callable(closure) and (loss := closure()) is not None:
                current().report(loss * batches)
        return args[:1], {**options, "closure": None}

    if IN_RUN and type(optimizer).__name__ != "LBFGS":  # which calls it several times
        optimizer.register_step_pre_hook(hook)
