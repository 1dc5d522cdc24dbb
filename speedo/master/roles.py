"""The roles around the driver: who carries commands out, who looks on, who keeps checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from speedo.master.coordinator import Coordinator
from speedo.messages import Action, Checkpointed, Command, Event, Left, SaveState, StateSaved


class Cluster(Protocol):
    """Who carries commands out. Sending does not wait; a death comes back as `Left` with its cause."""

    def send(self, command: Command) -> None: ...

    def next_event(self, timeout_s: float) -> Event | None:
        """The next event, or None after `timeout_s` seconds without one."""
        ...

    def evict(self, worker: int, incarnation: int, reason: str, *, for_good: bool = False) -> None:
        """Let a worker go: end it if it can be reached; its events are of no interest any more.

        `for_good`: it is not to be started again.
        """
        ...


class Observer(Protocol):
    """Who looks on: the run log, the trace of the simulator. `now` is seconds of the driver's clock."""

    def saw(self, event: Event, now: float) -> None: ...

    def did(self, action: Action, now: float) -> None: ...


class Checkpoints(Protocol):
    """Who keeps checkpoints; `now` is seconds of the driver's clock."""

    def due(self, now: float) -> bool:
        """Whether the center that was just merged should be kept."""
        ...

    def begin(self, coordinator: Coordinator, seconds: float, now: float) -> list[SaveState]:
        """Keep the present center, after `seconds` of training; what the workers are to do for it."""
        ...

    def saw(self, event: StateSaved | Left) -> None: ...

    def finished(self, now: float) -> list[Checkpointed]:
        """Checkpoints that came to their end, good or bad, since the last question."""
        ...

    def deadline(self) -> float:
        """When `finished` should be asked again at the latest; infinity while none is under way."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds after which waiting ends: for workers at the start, for any after losing them, for a first turn."""

    start_s: float = 120.0
    join_s: float = 120.0
    turn_s: float = 120.0
    test_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `metrics` are those of `version`, the last; empty if there is no test net."""

    complete: bool
    reason: str
    version: int
    iteration: int
    samples: int
    seconds: float
    metrics: Mapping[str, float]
    test_problem: str = ""


class Observers:
    """Several observers as one."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def saw(self, event: Event, now: float) -> None:
        for observer in self._observers:
            observer.saw(event, now)

    def did(self, action: Action, now: float) -> None:
        for observer in self._observers:
            observer.did(action, now)
