"""The threads of a worker whose turns overlap: one fetches, one computes, one publishes."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from speedo.errors import PayloadError
from speedo.messages import Train, Trained
from speedo.worker.overlapping_turns import OverlappingWorker

ORDER_S: Final = 30.0  # within which a turn that was sent before another must have come, too


class TurnPipeline:
    """Turns go in by `submit`, in any order and from any thread, and come out in the order of their tickets.

    `engine` is the one thread that the solver knows: Caffe's settings and its random numbers belong to a thread.
    """

    def __init__(self, worker: OverlappingWorker, engine: ThreadPoolExecutor) -> None:
        self.worker, self._engine = worker, engine
        self._fetching = ThreadPoolExecutor(1, "fetch")
        self._publishing = ThreadPoolExecutor(1, "publish")
        self._changed = threading.Condition()
        self._latest = 0  # ticket
        self._last: Future[Trained] | None = None

    def submit(self, command: Train) -> Future[Trained]:
        """Begin this turn, behind all that were submitted and the one that it comes after."""
        worker = self.worker
        with self._changed:
            if not self._changed.wait_for(lambda: self._latest >= command.after, ORDER_S):
                raise PayloadError(f"the turn before it, ticket {command.after}, never came")
            fetched = self._fetching.submit(worker.fetch, command)
            computed = self._engine.submit(lambda: worker.compute(command, fetched.result()))
            self._last = self._publishing.submit(lambda: worker.publish(command, computed.result()))
            self._latest = command.ticket
            self._changed.notify_all()
            return self._last

    def drain(self) -> None:
        """Wait for the turns that were submitted."""
        if self._last is not None:
            wait([self._last])

    def close(self) -> None:
        """Wait, and end the threads that are its own."""
        self._fetching.shutdown()
        self._publishing.shutdown()
