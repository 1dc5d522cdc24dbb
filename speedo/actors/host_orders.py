"""What the master orders a host to do, in answer to every look."""

from __future__ import annotations

from dataclasses import dataclass

from speedo.master.slots import Assignment


@dataclass(frozen=True, slots=True)
class End:
    """A worker whose process its host must end; `for_good`: and not start again."""

    worker: int
    incarnation: int
    reason: str
    for_good: bool

    def is_of(self, place: Assignment) -> bool:
        return (self.worker, self.incarnation) == (place.worker, place.incarnation)


@dataclass(frozen=True, slots=True)
class Orders:
    """What a host is to do: have `count` workers, end some, know the new places of others.

    `round` counts the times that somebody asked for a number of workers: those given up before get a new chance.
    """

    count: int
    round: int
    end: tuple[End, ...]
    moved: tuple[Assignment, ...]
