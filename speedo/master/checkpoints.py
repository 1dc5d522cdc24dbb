"""Checkpoints and snapshots as the driver sees them: the center is taken at once, and written beside the training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from speedo.master.coordinator import Coordinator
from speedo.messages import Checkpointed, Left, SaveState, Snapshotted, StateSaved


class TakenSnapshot(Protocol):
    """A snapshot whose weights are in memory."""

    @property
    def iteration(self) -> int: ...

    @property
    def wants_histories(self) -> bool:
        """Whether `write` needs the workers' solver histories."""
        ...

    def write(self, histories: Sequence[tuple[bytes, int]]) -> str:
        """Write its files, from histories that each stand for this many records; returns the problem if there is one.

        Called in any thread.
        """
        ...


class Snapshots(Protocol):
    """Takes snapshots of the center."""

    def take(self, iteration: int, last: bool) -> TakenSnapshot:
        """Take the center's weights now; raises `SpeedoError`."""
        ...

    def taken_at_end(self, iteration: int) -> TakenSnapshot | None:
        """The snapshot of a run that ends there; None if it leaves none."""
        ...


class Checkpoints(Protocol):
    """Keeps checkpoints; `now` is seconds of the driver's clock."""

    def due(self, now: float) -> bool:
        """Whether to keep the center that was just merged."""
        ...

    def begin(
        self, coordinator: Coordinator, seconds: float, now: float, within_s: float = math.inf
    ) -> list[SaveState]:
        """Keep the present center, after `seconds` of training; returns what the workers must do for it, in time."""
        ...

    def begin_snapshot(
        self, coordinator: Coordinator, snapshot: TakenSnapshot, now: float
    ) -> list[SaveState]:
        """Write a snapshot of the present version; returns what the workers must do for it."""
        ...

    def saw(self, event: StateSaved | Left) -> None: ...

    def finished(self, now: float) -> list[Checkpointed | Snapshotted]:
        """Checkpoints and snapshots that were completed or failed since the last call."""
        ...

    def deadline(self) -> float:
        """The latest time for the next call of `finished`; infinity if nothing is being written."""
        ...
