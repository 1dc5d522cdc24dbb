"""The memory of turns that overlap: each vector is lent, and comes back once no stage of any turn needs it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

from speedo.exchange.vector import Layout, Vector

BUFFERS: Final = 2  # one turn is published, or added to the next one's center, while another is fetched or computed
BUFFERS_KEPT: Final = 3  # where a result is needed until the turn after the next


@dataclass(eq=False, slots=True)
class TurnBuffer:
    """A turn's vector: its center, then its payload. `users` still need it; `lent` by `TurnBuffers`."""

    vector: Vector
    users: int = 1
    lent: bool = False


@dataclass
class TurnBuffers:
    """Vectors that are lent and come back, each once nobody needs it. May be used from several threads.

    Turns must take theirs in their order: else the one that comes first could wait for the one after it. Who encodes a
    payload or reads it meanwhile holds `statistics`: a codec sets them aside for a moment.
    """

    layout: Layout
    _made: int = 0
    _free: SimpleQueue[TurnBuffer] = field(default_factory=SimpleQueue)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    statistics: threading.Lock = field(default_factory=threading.Lock)

    def take(self, most: int = BUFFERS) -> TurnBuffer:
        """A buffer for one user, as soon as there is one of this many."""
        if self._made < most and self._free.empty():
            self._made += 1
            self._free.put(TurnBuffer(self.layout.zeros(), lent=True))
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
            free = buffer.lent and buffer.users == 0
        if free:
            self._free.put(buffer)
