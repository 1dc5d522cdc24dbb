"""Makes batches in a thread before they are asked for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from torch import Tensor

Batch = list[Tensor]


class Prefetch:
    """Keeps up to `depth` batches ready, which `make` makes in a thread, one after the other.

    The thread starts with the first `next`. An exception of `make` is raised by the `next` whose batch it was.
    """

    def __init__(self, make: Callable[[], Batch], depth: int, name: str) -> None:
        self.depth = depth
        self._make, self._name = make, name
        self._changed = threading.Condition()
        self._ready: deque[Batch] = deque()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False

    def next(self) -> Batch:
        """The next batch; waits for it."""
        with self._changed:
            if self._thread is None and self._error is None:
                self._stopping = False
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.wait_for(lambda: self._ready or self._error is not None)
            if not self._ready:
                assert self._error is not None
                raise self._error
            batch = self._ready.popleft()
            self._changed.notify_all()
            return batch

    def discard(self, batches: int) -> int:
        """Stop the thread and drop up to this many ready batches; how many there were."""
        self._stop()
        dropped = min(batches, len(self._ready))
        for _ in range(dropped):
            self._ready.popleft()
        return dropped

    def close(self) -> None:
        """Stop the thread, which ends with the batch that it is making, and free what is ready."""
        self._stop()
        self._ready.clear()

    def _stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or len(self._ready) < self.depth)
                if self._stopping:
                    return
            try:
                batch = self._make()
            except BaseException as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._ready.append(batch)
                self._changed.notify_all()
