"""The tests that scripts make themselves: which workers make which, and of which version of the center.

The k-th call of `run.test` in a worker is test point k. The first worker that comes to a point begins the test. With a
data set, workers that come to the point while records are left take part, and the numbers are the means over all
records. Without a data set, the first worker tests alone. All others continue. It is a test of the run like any other:
requested by `Evaluate`, answered by `Tested`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from speedo.errors import ConfigError
from speedo.exchange.lease import Lease, LeaseRequest, NoLease
from speedo.master.lease_book import LeaseBook
from speedo.messages import Action, Evaluate, Event, Finish, Left, Pause, Records, SetAside, Tested

Worker = tuple[int, int]  # and its incarnation
NONE = -1


@dataclass(slots=True)
class _Test:
    """One that is being made; `records` of a data set, 0 without one.

    `version` is None until the driver has said it, `NONE` if there is nothing to test. `sums` are the metrics times
    the records behind them.
    """

    point: int
    first: Worker
    records: int
    makers: set[Worker] = field(default_factory=set)
    version: int | None = None
    book: LeaseBook = field(default_factory=lambda: LeaseBook(seed=0))
    parts: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    tested: int = 0

    @property
    def has_more(self) -> bool:
        """Whether there are records that nobody tests yet."""
        return self.records > 0 and (not self.book.records or self.book.gives_more)


class ScriptTests:
    """Asked by workers from any thread, notified by the driver from its own thread; `put` tells the driver."""

    def __init__(self, put: Callable[[Event], None]) -> None:
        self._put, self._lock = put, threading.Lock()
        self._points: set[int] = set()  # that were given out, and not given back
        self._tests: dict[int, _Test] = {}  # by point
        self._of: dict[Worker, _Test] = {}
        self._asks = deque[Worker]()  # whose questions the driver has taken, and not answered
        self._found: dict[Worker, Tested] = {}  # what came of the test that they made with others
        self._gone: set[Worker] = set()
        self._over = False

    def claim(self, worker: int, incarnation: int, point: int, records: int = 0) -> int | None:
        """Whether this worker takes part in the test of this point, of a data set of this many records if there is one.

        None if it does not. Raises `ConfigError` if the data set is another than that of the others.
        """
        with self._lock:
            who, test = (worker, incarnation), self._tests.get(point)
            if self._over or who in self._gone:
                return None
            if test is None and point not in self._points:
                self._points.add(point)
                test = self._tests[point] = _Test(point, who, records)
            elif test is None or test.version == NONE or not records or not test.has_more:
                return None
            if records != test.records:
                raise ConfigError(
                    f"run.test of worker {worker} has a data set of {records} records, that of worker "
                    f"{test.first[0]} {test.records}: give run.test the same data set on every worker"
                )
            test.makers.add(who)
            self._of[who] = test
            return test.first == who

    def version(self, worker: int, incarnation: int) -> int | None:
        """The version to test, for a worker that takes part, and pauses; `NONE` if there is none.

        None while the driver has not said it: the worker asks again. A pause that lasts too long ends with its worker.
        """
        with self._lock:
            who = (worker, incarnation)
            test = self._of.get(who)
            if test is None:
                return NONE
            if test.version == NONE:
                self._leave(who)
            return test.version

    def lease(self, worker: int, incarnation: int, request: LeaseRequest) -> Lease | NoLease:
        """Records for this worker to test; `OVER` if none are free now."""
        with self._lock:
            test = self._of.get((worker, incarnation))
            if test is None:
                return NoLease.OVER
            test.book.joined(worker, incarnation)
            found = test.book.lease(worker, incarnation, request)
            self._end_if_all_are_tested(test)
            return found if isinstance(found, Lease) else NoLease.OVER

    def part(
        self, worker: int, incarnation: int, metrics: Mapping[str, float], records: Records
    ) -> Tested | bool:
        """The means over these records, if there are any. What came of the test, or whether there are more for it.

        Raises `ConfigError` if the metrics have other names than those of other workers.
        """
        with self._lock:
            who = (worker, incarnation)
            test = self._of.get(who)
            if test is not None and records:
                if test.sums and set(test.sums) != set(metrics):
                    raise ConfigError(
                        f"run.test of worker {worker} returned {', '.join(metrics)}, another one "
                        f"{', '.join(test.sums)}: return the same numbers on every worker, for any part of the data set"
                    )
                count = sum(stop - start for _, start, stop in records)
                for name, value in metrics.items():
                    test.sums[name] = test.sums.get(name, 0.0) + count * value
                test.tested += count
                test.parts += 1
                test.book.trained(worker, incarnation, test.parts, (Lease(*one) for one in records))
                test.book.merged(test.parts)
                self._end_if_all_are_tested(test)
            if who in self._of and test is not None:
                return test.has_more
            return self._found.pop(who, None) or Tested(NONE, {}, "the test is over")

    def tested(self, worker: int, incarnation: int, answer: Tested) -> None:
        """What came of a test that this worker made alone, or why that which it made with others has failed."""
        with self._lock:
            test = self._of.get((worker, incarnation))
            if test is not None:  # else it was given up
                self._end(test, answer)

    # ------------------------------------------------------------ the driver's side

    def ask(self, command: Evaluate) -> None:
        """The driver wants this version tested: by the worker that has asked for it, and those that join it."""
        with self._lock:
            test = self._of.get(self._asks[0]) if self._asks else None
            if test is not None and test.version is None:
                test.version = command.version
                return
        self._put(Tested(command.version, {}, "no script tests it any more"))

    def saw(self, event: Event, now: float) -> None:
        with self._lock:
            if isinstance(event, Pause):
                if not event.tests or (event.worker, event.incarnation) in self._gone:
                    return
                self._asks.append((event.worker, event.incarnation))
                if self._over:
                    self._nothing_to_test()
            elif isinstance(event, Left):
                self._left((event.worker, event.incarnation), event.cause)

    def did(self, action: Action, now: float) -> None:
        with self._lock:
            if isinstance(action, Evaluate):
                self._nothing_to_test()
            elif isinstance(action, SetAside):
                self._left((action.worker, action.incarnation), action.reason)
            elif isinstance(action, Finish):
                self._over = True
                for test in self._tests.values():
                    test.version = NONE if test.version is None else test.version

    # ------------------------------------------------------------ parts

    def _left(self, who: tuple[int, int], cause: str) -> None:
        self._gone.add(who)
        self._found.pop(who, None)
        if (test := self._of.get(who)) is not None:
            self._lose(test, who, cause)

    def _end_if_all_are_tested(self, test: _Test) -> None:
        if test.book.is_over and test.version is not None and test.sums:
            means = {name: value / test.tested for name, value in test.sums.items()}
            self._end(test, Tested(test.version, means))

    def _end(self, test: _Test, answer: Tested) -> None:
        for who in list(test.makers):
            if test.records:
                self._found[who] = answer
            self._leave(who)
        self._put(answer)

    def _leave(self, who: Worker) -> None:
        test = self._of.pop(who)
        test.makers.discard(who)
        if not test.makers:
            self._tests.pop(test.point, None)

    def _lose(self, test: _Test, who: Worker, cause: str) -> None:
        """This worker is gone: the others test what it has not. Without others who comes to the point begins it."""
        self._leave(who)
        test.book.left(*who)
        is_unasked = test.version is None and test.first == who
        if not test.makers or is_unasked:
            self._points.discard(test.point)
            self._tests.pop(test.point, None)
        if is_unasked:
            test.version = NONE
        elif not test.makers and test.version is not None and test.version != NONE:
            why = f"worker {who[0]}, which made it, is gone: {cause}"
            self._put(Tested(test.version, {}, why))

    def _nothing_to_test(self) -> None:
        """The driver has answered the first question; if it asked for nothing, that version is tested already."""
        test = self._of.get(self._asks.popleft()) if self._asks else None
        if test is not None and test.version is None:
            test.version = NONE
