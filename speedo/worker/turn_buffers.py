"""The memory of a worker's turns: each has one vector, from the fetch of its center to the end of its payload."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

from speedo.vectors.vector import Layout, Vector

COUNT: Final = 2  # one turn is published, or added to the next one's center, while another is fetched or computed
COUNT_KEPT: Final = 3  # where a result is needed until the turn after the next


@dataclass(eq=False, slots=True)
class TurnBuffer:
    """A vector, and how many still need it."""

    vector: Vector
    users: int = 0


@dataclass
class TurnBuffers:
    """Vectors that are lent and come back, each once nobody needs it. May be used from several threads.

    Turns must take theirs in their order: else the one that comes first could wait for the one after it.
    """

    layout: Layout
    _made: int = 0
    _free: SimpleQueue[TurnBuffer] = field(default_factory=SimpleQueue)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, most: int = COUNT) -> TurnBuffer:
        """A buffer for one user, as soon as there is one of so many."""
        if self._made < most and self._free.empty():
            self._made += 1
            self._free.put(TurnBuffer(self.layout.zeros()))
        buffer = self._free.get()
        buffer.users = 1
        return buffer

    def share(self, buffer: TurnBuffer) -> None:
        """One more needs it."""
        with self._lock:
            buffer.users += 1

    def give_back(self, buffer: TurnBuffer) -> None:
        """One of its users needs it no longer."""
        with self._lock:
            buffer.users -= 1
            free = buffer.users == 0
        if free:
            self._free.put(buffer)
