"""The tests that scripts make themselves: which worker makes which, and of which version of the center.

The k-th call of `run.test` in a worker is test point k. The first worker that comes to a point makes the test; the
others go on. It is a test of the run like any other: asked for by `Evaluate`, answered by `Tested`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from speedo.messages import Action, Evaluate, Event, Finish, Left, Pause, Tested

Worker = tuple[int, int]  # and its incarnation
NONE = -1


@dataclass(slots=True)
class _Test:
    """One that a worker makes. `version` is None until the driver has said it, `NONE` if there is nothing to test."""

    point: int
    version: int | None = None


class ScriptTests:
    """Asked by workers from any thread, told by the driver from its own; `put` tells the driver."""

    def __init__(self, put: Callable[[Event], None]) -> None:
        self._put, self._changed = put, threading.Condition()
        self._points: set[int] = set()  # that were given out, and not given back
        self._tests: dict[Worker, _Test] = {}
        self._asks: Worker | None = None  # whose question the driver has just taken
        self._gone: set[Worker] = set()
        self._over = False

    def claim(self, worker: int, incarnation: int, point: int) -> bool:
        """Whether this worker makes the test of this point: it is the first that comes to it."""
        with self._changed:
            who = (worker, incarnation)
            if self._over or who in self._gone or point in self._points:
                return False
            self._points.add(point)
            self._tests[who] = _Test(point)
            return True

    def version(self, worker: int, incarnation: int, timeout_s: float) -> int | None:
        """The version to test, for a worker that has claimed a point and pauses with `tests`; None if there is none."""
        with self._changed:
            test = self._tests.get((worker, incarnation))
            if test is None:
                return None
            self._changed.wait_for(lambda: test.version is not None, timeout_s)
            if test.version is None or test.version == NONE:
                self._tests.pop((worker, incarnation), None)
                return None
            return test.version

    def tested(self, worker: int, incarnation: int, answer: Tested) -> None:
        """What came of it."""
        with self._changed:
            if self._tests.pop((worker, incarnation), None) is None:
                return  # it was given up
        self._put(answer)

    # ------------------------------------------------------------ the driver's side

    def ask(self, command: Evaluate) -> None:
        """The driver wants this version tested: by the worker that has just asked for it."""
        with self._changed:
            who, self._asks = self._asks, None
            test = None if who is None else self._tests.get(who)
            if test is not None:
                test.version = command.version
                self._changed.notify_all()
                return
        self._put(Tested(command.version, {}, "no script tests it any more"))

    def saw(self, event: Event, now: float) -> None:
        """See `Observer.saw`."""
        with self._changed:
            self._nothing_to_test()
            if isinstance(event, Pause) and event.tests:
                self._asks = (event.worker, event.incarnation)
                if self._over:
                    self._nothing_to_test()
            elif isinstance(event, Left):
                who = (event.worker, event.incarnation)
                self._gone.add(who)
                if (test := self._tests.pop(who, None)) is not None:
                    self._give_up(
                        test, f"worker {event.worker}, which made it, is gone: {event.cause}"
                    )

    def did(self, action: Action, now: float) -> None:
        """See `Observer.did`."""
        if isinstance(action, Finish):
            with self._changed:
                self._over = True
                for test in self._tests.values():
                    test.version = NONE if test.version is None else test.version
                self._changed.notify_all()

    def _give_up(self, test: _Test, why: str) -> None:
        """Another worker that comes to this point makes its test."""
        self._points.discard(test.point)
        if test.version is None:
            test.version = NONE
            self._changed.notify_all()
        elif test.version != NONE:
            self._put(Tested(test.version, {}, why))

    def _nothing_to_test(self) -> None:
        """The driver asked for nothing after the question: the version is being tested, or the run is over."""
        who, self._asks = self._asks, None
        if who is not None and who in self._tests:
            self._tests[who].version = NONE
            self._changed.notify_all()
