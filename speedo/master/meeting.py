"""Who takes part in the collectives of a run's scripts: they meet once, and none of them may be missing afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from speedo.errors import ConfigError, TeamBrokenError


class Meeting:
    """Of the workers 0 to `size` - 1; asked from any thread.

    `gone` says why a worker of this incarnation has left the run; None if it has not.
    """

    def __init__(self, size: int, gone: Callable[[int, int], str | None]) -> None:
        self._size, self._gone = size, gone
        self._came: dict[int, tuple[int, str]] = {}  # incarnation and place, by worker
        self._lock = threading.Lock()

    def meet(self, worker: int, incarnation: int, place: str) -> tuple[str, ...]:
        """The places of all workers, by their numbers; none until all have come. Workers ask again and again.

        Raises `TeamBrokenError` once one of those that have met is gone, `ConfigError` for a worker too many.
        """
        if worker >= self._size:
            raise ConfigError(
                f"worker {worker} has come in addition to the {self._size} of --workers, and collectives are of those"
            )
        with self._lock:
            if len(self._came) < self._size:
                self._came[worker] = (incarnation, place)
                for other, (which, _) in list(self._came.items()):
                    if self._gone(other, which) is not None:
                        del self._came[other]  # another one may take its place
                if len(self._came) < self._size:
                    return ()
            if self._came[worker] != (incarnation, place):
                raise TeamBrokenError(
                    f"worker {worker} was started again, after the workers had begun their collectives"
                )
            if missing := self.missing([(one, which) for one, (which, _) in self._came.items()]):
                raise TeamBrokenError(missing)
            return tuple(self._came[one][1] for one in range(self._size))

    def missing(self, members: Sequence[tuple[int, int]]) -> str:
        """Which of these workers and incarnations is gone, as a sentence; empty while all are there."""
        for worker, incarnation in members:
            if cause := self._gone(worker, incarnation):
                return f"worker {worker} is gone: {cause}"
        return ""
