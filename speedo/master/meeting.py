"""Who takes part in the collectives of a run's scripts: groups of workers, each formed by those that are there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from speedo.errors import TeamBrokenError


@dataclass(frozen=True, slots=True)
class Group:
    """The `number`-th group of a run, from 1 on; `members` are workers and their places, by worker."""

    number: int
    members: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class _Comer:
    incarnation: int
    place: str
    call: str
    after: int  # the number of its last group


class Meeting:
    """The first group has `size` members; asked from any thread.

    The next one forms once all members of the former one are here again that are still in the run. Others that wait
    then are new members, if they come for the same call. `gone` says why a worker of this incarnation has left the run;
    None if it has not.
    """

    def __init__(self, size: int, gone: Callable[[int, int], str | None]) -> None:
        self._size, self._gone = size, gone
        self._number = 0
        self._group: dict[int, _Comer] = {}  # by worker, as the next
        self._waiting: dict[int, _Comer] = {}
        self._lock = threading.Lock()

    def meet(
        self, worker: int, incarnation: int, place: str, call: str, after: int
    ) -> Group | None:
        """The worker's next group after that of the number `after`; None until it forms, so it asks again and again."""
        with self._lock:
            own = self._group.get(worker)
            if self._number > after and own is not None and own.incarnation == incarnation:
                return self._formed()
            self._waiting[worker] = _Comer(incarnation, place, call, after)
            self._waiting = self._still_here(self._waiting)
            stays = self._still_here(self._group)
            enough = self._number > 0 or len(self._waiting) >= self._size
            if not enough or not stays.keys() <= self._waiting.keys() or not self._waiting:
                return None
            wanted = self._waiting[min(stays or self._waiting)].call
            self._group = {
                one: comer
                for one, comer in sorted(self._waiting.items())
                if self._number == 0 or one in stays or comer.call == wanted
            }
            self._number = 1 + max(self._number, *(one.after for one in self._group.values()))
            for one in self._group:
                del self._waiting[one]
            return self._formed() if worker in self._group else None

    def is_late(self, worker: int, incarnation: int) -> bool:
        """Whether a group has formed without this worker: it waits until the others make the same call."""
        with self._lock:
            own = self._group.get(worker)
            return self._number > 0 and (own is None or own.incarnation != incarnation)

    def look(self, number: int) -> bool:
        """Whether the group of this number is to form again, because others wait. Raises `TeamBrokenError`."""
        with self._lock:
            if not self._number:  # it has formed under a former master
                return bool(self._still_here(self._waiting))
            if number != self._number:
                raise TeamBrokenError("the other workers have left the collective")
            members = [(worker, one.incarnation) for worker, one in self._group.items()]
            if missing := self.missing(members):
                raise TeamBrokenError(missing)
            self._waiting = self._still_here(self._waiting)
            return bool(self._waiting.keys() - self._group.keys())

    def missing(self, members: Sequence[tuple[int, int]]) -> str:
        """Which of these workers and incarnations is gone, as a sentence; empty while all are there."""
        for worker, incarnation in members:
            if cause := self._gone(worker, incarnation):
                return f"worker {worker} is gone: {cause}"
        return ""

    def _formed(self) -> Group:
        return Group(self._number, tuple((one, it.place) for one, it in self._group.items()))

    def _still_here(self, workers: dict[int, _Comer]) -> dict[int, _Comer]:
        return {
            worker: one
            for worker, one in workers.items()
            if self._gone(worker, one.incarnation) is None
        }
