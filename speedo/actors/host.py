"""A host of workers: starts worker actors on its own node, watches their processes, tells why one died."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import RayActorError, RayTaskError

from speedo.actors.cluster import death_cause, first_line
from speedo.actors.spawn import spawn
from speedo.actors.worker import Ready, WorkerActor
from speedo.engines.fatal import fatal_line
from speedo.errors import EngineError, SpeedoError
from speedo.training import Assignment, RunSettings

WATCH_S = 0.25  # how often the workers' processes are looked at
START_S = 120.0  # building a solver may take this long


class WorkerHost:
    """`count` workers of one run on this node; their own words go to files in `logs`.

    `last_died`, once set, is the cause of the last worker's death: nobody is left here.
    """

    def __init__(
        self, master: Any, settings: RunSettings, name: str, logs: Path, data_root: Path | None
    ) -> None:
        self.last_died: str | None = None
        self._master, self._settings, self._name = master, settings, name
        self._logs, self._data_root = logs, data_root
        self._workers: dict[int, tuple[Assignment, Any, int]] = {}
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="worker-watch", daemon=True)

    def start(self, count: int) -> None:
        """Start the workers, all at once, and hand them to the master.

        Raises what kept one of them from starting, after the others were ended.
        """
        starting = []
        for _ in range(count):
            place: Assignment = ray.get(self._master.assign.remote(self._name))
            log = self._logs / f"worker-{place.worker}.log"
            actor = spawn(WorkerActor, self._settings, place, log, self._data_root)
            starting.append((place, actor, log, actor.start.remote()))
        try:
            for place, actor, log, reference in starting:
                ready = started(reference, log, f"worker {place.worker}")
                ray.get(
                    self._master.join.remote(place, actor, ready.samples_per_step, ready.layout)
                )
                self._workers[place.worker] = (place, actor, ready.process)
        except RayTaskError as error:
            self._end(starting)
            raise error.cause from None
        except SpeedoError:
            self._end(starting)
            raise
        self._watcher.start()

    def stop(self, cause: str) -> None:
        """End the workers; the master hears of it."""
        self._stopping.set()
        for place, actor, _ in self._workers.values():
            self._master.lost.remote(place, cause)
            ray.kill(actor)
        self._workers.clear()

    def _end(self, starting: list[tuple[Assignment, Any, Path, Any]]) -> None:
        for place, actor, _, _ in starting:
            self._master.lost.remote(place, "it did not start")
            ray.kill(actor)

    def _watch(self) -> None:
        while not self._stopping.wait(WATCH_S):
            for worker, (place, _, process) in list(self._workers.items()):
                if not _alive(process):
                    del self._workers[worker]
                    cause = (
                        cause_in(self._logs / f"worker-{worker}.log") or "its process was killed"
                    )
                    self._master.lost.remote(place, cause)
                    if not self._workers:
                        self.last_died = cause


def started(reference: Any, log: Path, who: str) -> Any:
    """The answer of an actor's `start`; a death becomes an error with Caffe's own words."""
    try:
        return ray.get(reference, timeout=START_S)
    except RayTaskError as error:
        if isinstance(error.cause, SpeedoError):
            raise error.cause from None
        raise EngineError(f"{who} could not start: {first_line(error.cause)}; see {log}") from None
    except RayActorError as error:
        cause = cause_in(log) or death_cause(error)
        raise EngineError(f"{who} could not start: {cause}; see {log}") from None
    except ray.exceptions.GetTimeoutError:
        raise EngineError(f"{who} did not start within {START_S:.0f} s; see {log}") from None


def cause_in(log: Path) -> str | None:
    """Caffe's FATAL line at the end of a worker's log, if that is how it ended."""
    try:
        return fatal_line(log.read_text(encoding="utf-8", errors="replace")[-20_000:])
    except OSError:
        return None


def _alive(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


__all__ = ["Ready", "WorkerHost", "cause_in", "started"]
