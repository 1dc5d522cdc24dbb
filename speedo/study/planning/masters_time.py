"""What a result costs the master beside its arrays, measured: driver, coordinator, status and log, without messages.

The parts are the real ones of a run, in mode async with one local step. The payloads are in the store when the driver
asks for the next result, and writing them is not counted.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from speedo.exchange.served_vectors import Exchange, Sender, Stores
from speedo.exchange.vector import Blob, Layout
from speedo.master.center import Center
from speedo.master.coordinator import Coordinator
from speedo.master.divergence import DivergenceWatch
from speedo.master.driver import Driver
from speedo.master.observers import Observers
from speedo.master.plan import Plan
from speedo.messages import Command, Event, Joined, Kind, Merge, Refused, Train, Trained
from speedo.run_dir.metrics_log import MetricsLog
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.rules import AddDelta, MergeRule
from speedo.storage.base import Store
from speedo.storage.memory_store import MemoryStore
from speedo.watch.status import StatusBoard

BATCH: Final = 64
WORKERS: Final = 8
RESULTS: Final = 400
TRIES: Final = 5
TIMINGS: Final = {"fetch": 0.001, "compute": 0.02, "publish": 0.001}


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of a result, and how many of them the center took."""

    whole: float
    center: float


def handling_seconds() -> float:
    """Of a result that comes alone: the least of several tries, which others have disturbed least."""
    found = []
    for _ in range(TRIES):
        store = MemoryStore()
        with tempfile.TemporaryDirectory(prefix="speedo-plan-") as folder:
            took = time_of_results(4, WORKERS, RESULTS, (store, store), Path(folder))
        found.append(took.whole - took.center)
    return min(found)


def time_of_results(
    floats: int,
    workers: int,
    results: int,
    stores: tuple[Store, Store],
    folder: Path,
    *,
    together: bool = False,
) -> Took:
    """Of so many results; the log is in `folder`, `stores` are the master's and the workers'.

    `together`: all that wait are decided at once.
    """
    layout = Layout((Blob("weights", (floats,)),))
    store, theirs = stores
    exchange = Exchange("plan", layout, [Stores(theirs)])
    cluster = _Ready(exchange, layout, workers, together=together)
    watch = DivergenceWatch("async", workers)
    center = _Clocked("plan", layout.zeros(), layout, store, clock=time.monotonic, divergence=watch)
    log = MetricsLog(folder, time.monotonic())
    driver = Driver(
        Coordinator(Asynchronous(AddDelta()), Plan(BATCH, results, workers)),
        center,
        cluster,
        Observers(StatusBoard("async", results, BATCH), log),
        time.monotonic,
        divergence=watch,
        together=log.together,
    )
    began = time.perf_counter()
    driver.run()
    seconds = time.perf_counter() - began - cluster.seconds
    log.close()
    return Took(seconds / results, center.seconds / results)


class _Ready:
    """Implements `speedo.master.cluster.Cluster`: every worker has its result there at once. `seconds` are its own."""

    def __init__(self, exchange: Exchange, layout: Layout, workers: int, *, together: bool) -> None:
        self._exchange, self._together = exchange, together
        self._payload = layout.zeros()
        self._payload[:] = 1e-6
        self._events: deque[Event] = deque(Joined(worker, 1, BATCH) for worker in range(workers))
        self._issued: list[Train] = []
        self.seconds = 0.0

    def send(self, command: Command) -> None:
        assert isinstance(command, Train)
        self._issued.append(command)

    def next_event(self, timeout_s: float) -> Event | None:
        if not self._events:
            began = time.perf_counter()
            for command in self._issued:
                sender = Sender(command.worker, 1, command.ticket, command.version, 0)
                bodies = self._exchange.encode(self._payload, None)
                self._exchange.publish(sender, Kind.DELTA, bodies)
                self._events.append(Trained(command.worker, 1, command.ticket, 0.5, BATCH, TIMINGS))
            self._issued.clear()
            self.seconds += time.perf_counter() - began
        return self._events.popleft()

    def waiting(self, most: int) -> list[Event]:
        count = min(most, len(self._events)) if self._together else 0
        return [self._events.popleft() for _ in range(count)]

    def evict(self, worker: int, incarnation: int, reason: str, *, for_good: bool = False) -> None:
        raise AssertionError(reason)


class _Clocked(Center):
    """A `Center` that knows how many `seconds` its work has taken."""

    seconds = 0.0

    def receive(self, event: Trained, rule: MergeRule) -> Refused | None:
        return self._timed(super().receive, event, rule)  # type: ignore[no-any-return]

    def merge(self, action: Merge, iteration_before: int, *, more: bool = False) -> Merge:
        return self._timed(super().merge, action, iteration_before, more=more)  # type: ignore[no-any-return]

    def tidy(self) -> None:
        self._timed(super().tidy)

    def _timed(self, work: Any, *given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        done = work(*given, **named)
        self.seconds += time.perf_counter() - began
        return done
