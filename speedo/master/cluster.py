"""The interface to whoever carries out a driver's commands: Ray, the simulator, a test."""

from __future__ import annotations

from typing import Protocol

from speedo.messages import Command, Event


class Cluster(Protocol):
    """Sends commands to the workers without waiting; a death comes back as `Left` with its cause."""

    def send(self, command: Command) -> None: ...

    def next_event(self, timeout_s: float) -> Event | None:
        """The next event, or None after `timeout_s` seconds without one."""
        ...

    def waiting(self, most: int) -> list[Event]:
        """The events after it that are there already, at most this many."""
        ...

    def evict(self, worker: int, incarnation: int, reason: str, *, for_good: bool = False) -> None:
        """Remove a worker: end it if it can be reached; its later events are ignored.

        `for_good`: do not restart it.
        """
        ...
