"""A thread for calls that may hang, as on a disk that does not answer: the end of the process does not wait for it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

Result = TypeVar("Result")
HUNG_S: Final = 120.0  # a disk that has not answered for so long hangs


class DaemonThread(Generic[Result]):
    """Makes calls one after another. Python's own executor would wait for the last of them when the process ends."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Result], Future[Result]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """The answer of a call, which is made after those before it."""
        answer: Future[Result] = Future()
        self._calls.put((call, answer))
        return answer

    def close(self, timeout_s: float) -> bool:
        """Wait for the calls so far, not longer than this; whether they are done."""
        self.end()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def end(self) -> None:
        """No call comes after those so far."""
        self._calls.put(None)

    def _run(self) -> None:
        answer: Future[Any]
        while (one := self._calls.get()) is not None:
            call, answer = one
            try:
                answer.set_result(call())
            except BaseException as error:  # it is the caller's
                answer.set_exception(error)


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """The answer of a call that may hang; raises its error, or `OSError` if it has none in time and is left behind."""
    thread: DaemonThread[Result] = DaemonThread("disk")
    answer = thread.submit(call)
    thread.end()
    if not wait([answer], seconds).done:
        raise OSError(errno.ETIMEDOUT, f"no answer for {seconds:.0f} s")
    return answer.result()
