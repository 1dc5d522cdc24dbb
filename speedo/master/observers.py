"""The observers of all events of a run: logs, the status, the simulator's trace."""

from __future__ import annotations

from typing import Protocol

from speedo.messages import Action, Event


class Observer(Protocol):
    """Observes a run: the run log, the simulator's trace. `now` is seconds of the driver's clock."""

    def saw(self, event: Event, now: float) -> None: ...

    def did(self, action: Action, now: float) -> None: ...


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
