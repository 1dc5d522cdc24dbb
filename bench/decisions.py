"""Milliseconds of the master's process for a result: where each comes alone, and where several wait together.

    python -m bench.decisions [--together 1 4 16] [--floats 4 430500] [--results 2000] [--rounds 3]

Driver, coordinator, center, divergence watch, status and run log are the real ones, in mode async with one local step;
the payloads are there when the driver asks for the next result, and writing them is not counted. Ratios are those of
the same round. Each size is measured over shared memory; the first also over a dictionary, which leaves the Python.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path

from bench.support.table import text
from speedo.exchange.served_vectors import Exchange, Sender, Stores
from speedo.exchange.vector import Blob, Layout
from speedo.master.center import Center
from speedo.master.coordinator import Coordinator
from speedo.master.divergence import DivergenceWatch
from speedo.master.driver import Driver
from speedo.master.observers import Observers
from speedo.master.turn_book import Plan
from speedo.messages import Command, Event, Joined, Kind, Train, Trained
from speedo.run_dir.metrics_log import MetricsLog
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.rules import AddDelta
from speedo.storage.base import Store
from speedo.storage.memory_store import MemoryStore
from speedo.storage.shared_memory.store import SharedMemoryStore
from speedo.watch.status import StatusBoard

BATCH = 64
TIMINGS = {"fetch": 0.001, "compute": 0.02, "publish": 0.001}


class Feeder:
    """Implements `speedo.master.driver.Cluster`: every worker has its result there at once. `seconds` are its own."""

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


def measure(
    floats: int, workers: int, results: int, *, together: bool, in_memory: bool = False
) -> float:
    """Milliseconds of a result."""
    layout = Layout((Blob("weights", (floats,)),))
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as shared,
        tempfile.TemporaryDirectory() as run,
    ):
        store: Store = SharedMemoryStore(Path(shared))
        theirs: Store = SharedMemoryStore(Path(shared))
        if in_memory:
            store = theirs = MemoryStore()
        watch = DivergenceWatch("async", workers)
        cluster = Feeder(
            Exchange("bench", layout, [Stores(theirs)]), layout, workers, together=together
        )
        center = Center(
            "bench", layout.zeros(), layout, store, clock=time.monotonic, divergence=watch
        )
        log = MetricsLog(Path(run), time.monotonic())
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
        store.close()
        theirs.close()
    return 1e3 * seconds / results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--together", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--floats", type=int, nargs="+", default=[4, 430_500])
    parser.add_argument("--results", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rows = [["floats", "workers", "alone, ms", "together, ms", "alone / together"]]
    sizes = [(arguments.floats[0], True), *((floats, False) for floats in arguments.floats)]
    for floats, in_memory in sizes:
        for workers in arguments.together:
            found = []
            for _ in range(arguments.rounds):
                alone, other = (
                    measure(floats, workers, arguments.results, together=one, in_memory=in_memory)
                    for one in (False, True)
                )
                found.append((alone, other))
            ratio = statistics.median(one / other for one, other in found)
            alone, other = (statistics.median(column) for column in zip(*found, strict=True))
            size = f"{floats:,}, no store" if in_memory else f"{floats:,}"
            rows.append([size, str(workers), f"{alone:.3f}", f"{other:.3f}", f"{ratio:.2f}"])
    print(text(rows))


if __name__ == "__main__":
    main()
