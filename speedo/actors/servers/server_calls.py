"""Requests to one server over Ray: those that wait while earlier ones are under way go in one actor call.

A call costs the master a tenth of a millisecond and more at each end, whatever is in it. Where nothing is under way a
request goes at once. The server carries all out in the order in which they were made.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from ray.exceptions import RayError

from speedo.actors.ray_errors import raised_by, why
from speedo.errors import SpeedoError
from speedo.master.servers.server_requests import Answer, Request

MOST_CALLS: Final = 2  # under way: while the server does one, the next is on its way
MOST_REQUESTS: Final = 64  # in one call

Found = Answer | SpeedoError


@dataclass(frozen=True, slots=True)
class ServerLost:
    """A server that gives no answer any more, and why."""

    cause: str


Asked = Future[Found | ServerLost]


class ServerCalls:
    """The requests to one server process. Each is answered, or lost with the cause; its methods may be called from
    any thread.
    """

    def __init__(self, handle: Any) -> None:
        """`handle` is its actor."""
        self.handle = handle
        self.calls = 0  # made so far
        self._waiting: deque[tuple[Request, Asked]] = deque()
        self._under_way = 0
        self._held = 0
        self._lock = threading.Lock()

    def ask(self, request: Request) -> Asked:
        """Its answer to come."""
        asked = Asked()
        self._waiting.append((request, asked))
        self._go_on()
        return asked

    def hold(self) -> None:
        """Begin no call until `let_go`, which is called as often: several requests are about to come."""
        with self._lock:
            self._held += 1

    def let_go(self) -> None:
        with self._lock:
            self._held -= 1
        self._go_on()

    def _go_on(self) -> None:
        """Begin calls, as many as there may be."""
        while True:
            with self._lock:
                if self._held or not self._waiting or self._under_way >= MOST_CALLS:
                    return
                count = min(MOST_REQUESTS, len(self._waiting))
                those = [self._waiting.popleft() for _ in range(count)]
                self._under_way += 1
                self.calls += 1
                # Within the lock, so that calls leave in the order of their requests.
                reference = self._call([request for request, _ in those])
            asked = [one for _, one in those]
            if isinstance(reference, ServerLost):
                self._over(asked, reference)
            else:
                reference.future().add_done_callback(
                    lambda done, asked=asked: self._answered(asked, done)
                )

    def _call(self, requests: Sequence[Request]) -> Any:
        try:
            return self.handle.do_all.remote(requests)
        except RayError as error:
            return ServerLost(why(error))

    def _answered(self, asked: Sequence[Asked], done: Any) -> None:
        error = done.exception()
        if error is None:
            return self._over(asked, done.result())
        raised = raised_by(error)
        if isinstance(raised, SpeedoError):
            self._over(asked, [raised] * len(asked))
        else:
            self._over(asked, ServerLost(why(error)) if raised is None else error)

    def _over(
        self, asked: Sequence[Asked], found: Sequence[Found] | ServerLost | Exception
    ) -> None:
        """A call has ended."""
        with self._lock:
            self._under_way -= 1
        if isinstance(found, Exception):
            for one in asked:
                one.set_exception(found)
        else:
            _settle(asked, [found] * len(asked) if isinstance(found, ServerLost) else found)
        self._go_on()


def _settle(asked: Sequence[Asked], found: Sequence[Found | ServerLost]) -> None:
    for one, answer in zip(asked, found, strict=True):
        one.set_result(answer)
