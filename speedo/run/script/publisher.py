"""Publishes the results of a script's turns in a thread, while the script continues."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue

from speedo.errors import SpeedoError
from speedo.exchange.channel import refusal
from speedo.exchange.lease import Lease
from speedo.messages import Train, Trained
from speedo.run.script.turns import TurnSource
from speedo.storage.meaning import passes
from speedo.worker.share import RecordShare


class Publisher:
    """Results go in by `publish` and are answered in their order. Records of those that are lost go back to `share`."""

    def __init__(self, turns: TurnSource, share: RecordShare) -> None:
        self._turns, self._share = turns, share
        self._lost: SimpleQueue[tuple[Lease, ...]] = SimpleQueue()
        self._thread = ThreadPoolExecutor(1, "publish")
        self._last: Future[None] | None = None

    def publish(
        self, publish: Callable[[], Trained], command: Train, records: tuple[Lease, ...]
    ) -> None:
        """Have the thread publish and answer what came of this turn, once it has done so with the one before."""
        self.finish()
        self._last = self._thread.submit(self._answer, publish, command, records)

    def _answer(
        self, publish: Callable[[], Trained], command: Train, records: tuple[Lease, ...]
    ) -> None:
        try:
            self._turns.answer(publish())
        except SpeedoError as problem:
            if not passes(problem):
                raise
            self._lost.put(records)
            self._turns.answer(refusal(command, problem))

    def give_back_what_is_lost(self) -> None:
        """In the script's own thread, which shares the records."""
        try:
            while True:
                self._share.give_back(self._lost.get_nowait())
        except Empty:
            return

    def finish(self) -> None:
        """Wait until all is answered. Raises what went wrong, if it is no passing trouble of the store."""
        if self._last is not None:
            self._last.result()
        self.give_back_what_is_lost()

    def close(self) -> None:
        """Finish, and end the thread."""
        self._thread.shutdown()
        self.finish()
