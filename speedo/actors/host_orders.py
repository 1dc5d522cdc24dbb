"""The master's instructions to a host, returned by each call of `MasterActor.attend`."""

from __future__ import annotations

from dataclasses import dataclass

from speedo.master.slots import Assignment


@dataclass(frozen=True, slots=True)
class End:
    """A worker whose process its host must end; with `for_good` it is not restarted."""

    worker: int
    incarnation: int
    reason: str
    for_good: bool

    def is_of(self, place: Assignment) -> bool:
        return (self.worker, self.incarnation) == (place.worker, place.incarnation)


@dataclass(frozen=True, slots=True)
class Orders:
    """What a host must do: run `count` workers, end those in `end`, and record the new places in `moved`.

    `round` counts the requests for a number of workers: each request also restarts workers that were given up.
    """

    count: int
    round: int
    end: tuple[End, ...]
    moved: tuple[Assignment, ...]
