"""How many turns each worker has done, for modes that bound how far one may be ahead of another."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class TurnCounts:
    """The turns of each worker. `at` counts the workers at each number, so nothing here takes longer with more."""

    turns: dict[int, int] = field(default_factory=dict)
    at: Counter[int] = field(default_factory=Counter)

    @property
    def fewest(self) -> int:
        """The turns of the slowest."""
        return min(self.at, default=0)

    @property
    def most(self) -> int:
        """The turns of the fastest."""
        return max(self.at, default=0)

    def lead(self, worker: int) -> int:
        """How many turns it is ahead of the slowest."""
        return self.turns[worker] - self.fewest

    def add(self, worker: int) -> None:
        """It has done one more."""
        self.move(worker, self.turns[worker] + 1)

    def move(self, worker: int, turns: int | None) -> None:
        """Set a worker's number of turns; None removes it."""
        before = self.turns.pop(worker, None)
        if before is not None:
            self.at[before] -= 1
            if not self.at[before]:
                del self.at[before]
        if turns is not None:
            self.turns[worker] = turns
            self.at[turns] += 1
