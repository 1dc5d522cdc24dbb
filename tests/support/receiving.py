"""A coordinator whose payloads are all good: what it answers once it knows."""

from __future__ import annotations

from speedo.master.coordinator import Coordinator
from speedo.master.turn_book import Receive
from speedo.messages import Action, Event


def handle(coordinator: Coordinator, event: Event | Receive) -> list[Action]:
    """The actions that follow from this event; a payload to receive is received."""
    answer = coordinator.handle(event)
    while isinstance(answer, Receive):
        answer = coordinator.handle(answer)
    return answer
