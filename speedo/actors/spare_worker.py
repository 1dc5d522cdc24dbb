"""A worker's process that has loaded what any worker of its host needs, and waits for one of them to die."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, Final

import psutil
import ray
from ray.exceptions import RayError

from speedo.actors.worker_process import loading
from speedo.run.settings import RunSettings
from speedo.system.free_memory import free_memory

# A host has one once its workers were there for so long, or one of them has died.
SETTLED_S: Final = 60.0
PLENTY: Final = 2 << 30  # bytes of free memory with which one is begun
SHORT: Final = 1 << 30  # and with less than this it is given up
ANSWER_S: Final = 0.5  # for one that lives to say so


class SpareWorker:
    """At most one; it begins to load when it is `due`, of the clock that the caller has."""

    def __init__(self) -> None:
        self.due = math.inf
        self._actor: Any = None
        self._loaded: Any = None
        self._count = 0

    def look(self, settings: RunSettings, count: int, now: float) -> None:
        """Have one, for a host of so many workers, while memory is not short."""
        free = free_memory()
        if self._actor is not None and (self._count != count or free < SHORT):
            self.end()
        if self._actor is None and now >= self.due and free >= PLENTY:
            self._count = count
            self._actor, self._loaded = loading(settings, count)

    def take(self) -> Any:
        """The actor, for `WorkerProcess.begin`; None if none has loaded yet."""
        if self._actor is None or not ray.wait([self._loaded], timeout=0)[0]:
            return None
        actor, self._actor = self._actor, None
        with suppress(RayError):
            if psutil.pid_exists(ray.get(actor.process.remote(), timeout=ANSWER_S)):
                return actor
        return None

    def end(self) -> None:
        """Have none."""
        if self._actor is not None:
            with suppress(RayError):
                ray.kill(self._actor)
        self._actor = None
