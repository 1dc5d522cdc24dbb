"""The cluster as the driver sees it, over Ray: turns are actor calls, their futures become events."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from speedo.messages import Command, Event, Joined, Left, Refused, StopAsked, Tested, Train

CAUSE_WAIT_S = (
    2.0  # a worker's own host knows better than Ray why it died, and may say so within this time
)


class RayCluster:
    """Implements `speedo.driver.Cluster`. `send` and `next_event` belong to the driver's thread."""

    def __init__(self, on_left: Callable[[int, int], None]) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._handles: dict[tuple[int, int], Any] = {}
        self._left: set[tuple[int, int]] = set()
        self._lock = threading.Lock()
        self._on_left = on_left
        self.tester: Any = None

    # ------------------------------------------------------------ from anywhere

    def join(self, worker: int, incarnation: int, handle: Any, samples_per_step: int) -> None:
        """A worker that is ready."""
        self._handles[worker, incarnation] = handle
        self._events.put(Joined(worker, incarnation, samples_per_step))

    def lost(self, worker: int, incarnation: int, cause: str) -> None:
        """A worker is gone; told once, the first cause counts."""
        with self._lock:
            if (worker, incarnation) in self._left:
                return
            self._left.add((worker, incarnation))
        self._handles.pop((worker, incarnation), None)
        self._on_left(worker, incarnation)
        self._events.put(Left(worker, incarnation, cause))

    def stop(self, reason: str) -> None:
        self._events.put(StopAsked(reason))

    # ------------------------------------------------------------ Cluster

    def send(self, command: Command) -> None:
        if isinstance(command, Train):
            handle = self._handles.get((command.worker, command.incarnation))
            if handle is not None:  # otherwise its end is on its way to the driver
                reference = handle.turn.remote(command)
                reference.future().add_done_callback(lambda done: self._turn_done(command, done))
            return
        reference = self.tester.evaluate.remote(command.version)
        reference.future().add_done_callback(lambda done: self._test_done(command.version, done))

    def next_event(self, timeout_s: float) -> Event | None:
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def evict(self, worker: int, incarnation: int, reason: str) -> None:
        handle = self._handles.pop((worker, incarnation), None)
        with self._lock:
            self._left.add((worker, incarnation))
        self._on_left(worker, incarnation)
        if handle is not None:
            ray.kill(handle)

    # ------------------------------------------------------------ answers

    def _turn_done(self, command: Train, done: Any) -> None:
        worker, incarnation = command.worker, command.incarnation
        error = done.exception()
        if error is None:
            self._events.put(done.result())
        elif isinstance(error, RayTaskError):
            reason = first_line(error.cause)
            self._events.put(Refused(worker, incarnation, command.ticket, reason))
        else:
            cause = death_cause(error)
            timer = threading.Timer(CAUSE_WAIT_S, lambda: self.lost(worker, incarnation, cause))
            timer.daemon = True
            timer.start()

    def _test_done(self, version: int, done: Any) -> None:
        error = done.exception()
        if error is None:
            self._events.put(Tested(version, done.result()))
        else:
            cause = error.cause if isinstance(error, RayTaskError) else error
            self._events.put(Tested(version, {}, first_line(cause)))


def first_line(error: BaseException) -> str:
    """An error as one sentence."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]


def death_cause(error: BaseException) -> str:
    """Why an actor died, as far as Ray tells."""
    text = str(error)
    if isinstance(error, RayActorError) and "out-of-memory" in text.lower():
        return "its process was killed because the node ran out of memory"
    if isinstance(error, RayActorError):
        return "its process died"
    return first_line(error)
