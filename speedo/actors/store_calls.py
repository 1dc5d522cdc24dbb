"""The calls of a master to the store that may wait: they take none of the threads in which its actor answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final, TypeVar

Answer = TypeVar("Answer")
THREADS: Final = 8
BRIEFLY_S: Final = 0.1  # the first question waits so long: usually the store has answered by then


class StoreCalls:
    """May be asked from several threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "store-call")
        self._under_way: dict[Hashable, Future[Any]] = {}
        self._lock = threading.Lock()

    def ask(self, key: Hashable, call: Callable[[], Answer]) -> Answer | None:
        """What this call returns or raises; None while it is under way: ask again with the same key."""
        with self._lock:
            found = self._under_way.get(key)
            asked = found or self._threads.submit(call)
            self._under_way[key] = asked
        if found is None:
            wait((asked,), BRIEFLY_S)
        if not asked.done():
            return None
        with self._lock:
            self._under_way.pop(key, None)
        answer: Answer = asked.result()
        return answer

    def later(self, call: Callable[[], None]) -> None:
        """Make this call, whose answer nobody needs, when a thread is free."""
        self._threads.submit(call)
