"""An observer that keeps what it is told."""

from __future__ import annotations

from typing import Any

from speedo.master.observers import Observer
from speedo.messages import Action, Event


class Seen:
    """What the driver saw and did; `next` is the trace."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.actions: list[Action] = []

    def follow(self, trace: Observer) -> Seen:
        self.next = trace
        return self

    def saw(self, event: Event, now: float) -> None:
        self.next.saw(event, now)
        self.events.append(event)

    def did(self, action: Action, now: float) -> None:
        self.next.did(action, now)
        self.actions.append(action)

    def all(self, kind: type[Any]) -> list[Any]:
        return [action for action in self.actions if isinstance(action, kind)]
