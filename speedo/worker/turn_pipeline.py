"""An engine's turns in three threads: one is fetched and another published while the engine computes a third."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar

from speedo.errors import PayloadError
from speedo.messages import Train, Trained
from speedo.worker.turn import EngineWorker

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")
ORDER_S: Final = 30.0  # within which a turn that was sent before another must have come, too


class TurnPipeline:
    """The turns of `worker` go in by `submit`, from any thread, and come out in the order of their tickets.

    One thread computes and does all that is done `by_engine`: Caffe's settings and its random numbers belong to a
    thread.
    """

    worker: EngineWorker

    def __init__(self) -> None:
        self._engine = ThreadPoolExecutor(1, "engine")
        self._fetching = ThreadPoolExecutor(1, "fetch")
        self._publishing = ThreadPoolExecutor(1, "publish")
        self._changed = threading.Condition()
        self._latest = 0  # ticket
        self._last: Future[Trained] | None = None

    def by_engine(self, do: Callable[[Argument], Answer], argument: Argument) -> Answer:
        """Do it in the thread that the solver belongs to."""
        return self._engine.submit(do, argument).result()

    def submit(self, command: Train) -> Future[Trained]:
        """Begin this turn, behind all that were submitted and the one that it comes after."""
        worker = self.worker
        with self._changed:
            if not self._changed.wait_for(lambda: self._latest >= command.own.pending, ORDER_S):
                raise PayloadError(f"the turn before it, ticket {command.own.pending}, never came")
            fetched = self._fetching.submit(worker.fetch, command)
            computed = self._engine.submit(lambda: worker.compute(command, fetched.result()))
            self._last = self._publishing.submit(lambda: computed.result()())
            self._latest = command.ticket
            self._changed.notify_all()
            return self._last

    def drain(self) -> None:
        """Wait for the turns that were submitted."""
        if self._last is not None:
            wait([self._last])

    def close(self) -> None:
        """Wait, and end the threads."""
        for stage in (self._fetching, self._engine, self._publishing):
            stage.shutdown()
