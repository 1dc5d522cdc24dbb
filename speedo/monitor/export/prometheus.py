"""The metrics of a run for Prometheus, on a port of loopback: http://127.0.0.1:PORT/metrics.

Names and units follow Prometheus' conventions: base units, `_total` for what only grows within a process. What goes
back when a run is resumed is a gauge.
"""

from __future__ import annotations

import bisect
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from speedo.foreign_text import MOST_NAME, clean_text
from speedo.messages import Checkpointed, Drop, Evaluate, Merge, Tested, Train, Trained
from speedo.monitor.export.background import Told
from speedo.monitor.export.means import TestedIterations
from speedo.monitor.own_names import names_us
from speedo.monitor.status import Status
from speedo.run_dir.checkpoint_file import Counters

HOST: Final = "127.0.0.1"
STALENESS: Final = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)  # upper bounds of the buckets, in versions
DECISIONS: Final = ("merged", "discarded", "late", "refused")
STATES: Final = ("training", "waiting", "away")
MOST_LABELS: Final = 1000  # of one metric: workers name the parts of a turn, nets their outputs
READ_S: Final = 10.0  # for a request to arrive


class _Scrape(WSGIRequestHandler):
    """A request; nothing is logged."""

    timeout = READ_S

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def _guarded(app: Any) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    """The application, for requests that name this server."""

    def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if names_us(environ.get("HTTP_HOST", "")):
            return app(environ, start)  # type: ignore[no-any-return]
        start("421 Misdirected Request", [("Content-Type", "text/plain")])
        return [b"this server has another name\n"]

    return answer


class PrometheusMetrics(Collector):
    """An exporter that counts, and answers scrapes from other threads.

    `status` is the state of the run now, `bytes_of` what a result and a turn carry: payload and center.
    """

    name = "the metrics for Prometheus"
    problem = ""  # nothing is written to a disk

    def __init__(
        self,
        run: str,
        version: str,
        status: Callable[[], Status],
        bytes_of: Callable[[], tuple[int, int]],
        *,
        resumed: Counters | None = None,
    ) -> None:
        self._info = {"run": run, "version": version}
        self._status, self._bytes_of = status, bytes_of
        self._lock = threading.Lock()
        self._results = Counter(dict.fromkeys(DECISIONS, 0))
        self._staleness = [0] * (len(STALENESS) + 1)
        self._staleness_sum = self._samples = self._turns = self._received = 0
        self._parts: dict[str, tuple[int, float]] = {}
        last = (0, 0) if resumed is None else (resumed.version, resumed.iteration)
        self._tests = TestedIterations(last)
        self._tested: dict[str, float] = {}
        self._tested_iteration = 0
        self._tests_made = self._tests_failed = self._checkpoints = 0
        self._checkpoint_s = 0.0  # wall clock
        self._stop: Callable[[], None] = lambda: None

    def serve(self, port: int) -> int:
        """Answer at this port of loopback, 0 for any; returns the port. Raises `OSError` if it is taken."""
        registry = CollectorRegistry()
        registry.register(self)
        server = make_server(
            HOST, port, _guarded(make_wsgi_app(registry)), ThreadingWSGIServer, _Scrape
        )
        thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._stop = stop
        return int(server.server_port)

    def close(self) -> None:
        """Answer no more."""
        self._stop()

    def take(self, told: Told, now: float) -> None:
        with self._lock:
            self._take(told)

    def _take(self, told: Told) -> None:
        match told:
            case Train():
                self._turns += 1
            case Trained():
                self._received += 1
                for name, seconds in told.timings.items():
                    self._add(name, seconds)
            case Merge():
                self._tests.last = (told.version, told.iteration)
                for part in told.parts:
                    self._results["merged"] += 1
                    self._samples += part.samples
                    self._staleness[bisect.bisect_left(STALENESS, part.staleness)] += 1
                    self._staleness_sum += part.staleness
                for timings in told.timings:
                    for name, seconds in timings.items():
                        self._add(f"master_{name}", seconds)
            case Drop():
                self._results[told.decision] += 1
            case Evaluate():
                self._tests.ask(told.version, told.iteration)
            case Tested() if told.problem:
                self._tests_failed += 1
            case Tested():
                self._tests_made += 1
                self._tested = {
                    clean_text(name, MOST_NAME): value
                    for name, value in islice(told.metrics.items(), MOST_LABELS)
                }
                self._tested_iteration = self._tests.of(told.version)
            case Checkpointed() if told.bytes:
                self._checkpoints += 1
                self._checkpoint_s = time.time()
            case _:
                pass

    def _add(self, part: str, seconds: float) -> None:
        name = clean_text(part, MOST_NAME)
        if name in self._parts or len(self._parts) < MOST_LABELS:
            count, total = self._parts.get(name, (0, 0.0))
            self._parts[name] = (count + 1, total + seconds)

    # ------------------------------------------------------------ a scrape

    def describe(self) -> Iterator[Metric]:
        """Nothing: a registry would scrape to learn the names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Every metric as it is now."""
        status, (payload, center) = self._status(), self._bytes_of()
        with self._lock:
            yield from self._of_status(status)
            yield from self._counted(payload, center)

    def _of_status(self, status: Status) -> Iterator[Metric]:
        yield InfoMetricFamily("speedo_run", "The run.", {**self._info, "mode": status.mode})
        for name, help, value in (
            ("iteration", "Iterations done: samples merged over the batch of the solver.", status.iteration),
            ("max_iterations", "Iterations at which the run ends.", status.max_iter),
            ("epochs", "Passes over the training records.", status.epoch),
            ("version", "Version of the center.", status.version),
            ("loss", "Training loss, mean over ten seconds.", status.loss),
            ("images_per_second", "Records merged per second, mean over ten seconds.", status.images_per_s),
            ("training_seconds", "Seconds since the first turn of this process.", status.seconds),
        ):  # fmt: skip
            if not math.isnan(value):
                yield GaugeMetricFamily(f"speedo_{name}", help, value)
        workers = GaugeMetricFamily("speedo_workers", "Workers by state.", labels=["state"])
        states = Counter("away" if one.is_away else _state(one.state) for one in status.workers)
        for state in STATES:
            workers.add_metric([state], states[state])
        yield workers
        yield GaugeMetricFamily(
            "speedo_workers_wanted", "Workers that the hosts should run.", status.wanted
        )

    def _counted(self, payload: int, center: int) -> Iterator[Metric]:
        yield CounterMetricFamily("speedo_samples", "Records merged.", self._samples)
        results = CounterMetricFamily(
            "speedo_results", "Results by what became of them.", labels=["decision"]
        )
        for decision, count in self._results.items():
            results.add_metric([decision], count)
        yield results
        buckets, below = list[tuple[str, float]](), 0
        for bound, count in zip([*map(float, STALENESS), math.inf], self._staleness, strict=True):
            below += count
            buckets.append(("+Inf" if math.isinf(bound) else str(bound), below))
        staleness = HistogramMetricFamily(
            "speedo_result_staleness_versions",
            "Versions merged since the center that a merged result began from.",
        )
        staleness.add_metric([], buckets, self._staleness_sum)
        yield staleness
        parts = SummaryMetricFamily(
            "speedo_turn_part_seconds",
            "Where the seconds of a turn go: in the worker, and with master_ in the master.",
            labels=["part"],
        )
        for part, (count, total) in self._parts.items():
            parts.add_metric([part], count, total)
        yield parts
        for name, help, value in (
            ("sent_bytes", "Bytes of the results that reached the master.", self._received * payload),
            ("fetched_bytes", "Bytes of the centers that were fetched for turns.", self._turns * center),
            ("turns", "Turns given to workers.", self._turns),
            ("tests", "Tests of a version.", self._tests_made),
            ("failed_tests", "Tests that gave no metrics.", self._tests_failed),
            ("checkpoints", "Checkpoints written.", self._checkpoints),
        ):  # fmt: skip
            yield CounterMetricFamily(f"speedo_{name}", help, value)
        tested = GaugeMetricFamily("speedo_test_result", "The last test.", labels=["output"])
        for output, score in self._tested.items():
            tested.add_metric([output], score)
        yield tested
        yield GaugeMetricFamily(
            "speedo_tested_iteration", "Iteration of the last test.", self._tested_iteration
        )
        if self._checkpoint_s:
            yield GaugeMetricFamily(
                "speedo_checkpoint_timestamp_seconds",
                "When the last checkpoint was written, in seconds since 1970.",
                self._checkpoint_s,
            )
            yield GaugeMetricFamily(
                "speedo_checkpoint_age_seconds",
                "Seconds since the last checkpoint was written.",
                max(time.time() - self._checkpoint_s, 0.0),
            )


def _state(state: str) -> str:
    """One of `STATES`, for a worker that is there."""
    return "training" if state == "training" else "waiting"
