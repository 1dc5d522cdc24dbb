"""The metrics of a run for Prometheus, on a port of loopback: http://127.0.0.1:PORT/metrics.

Names and units follow Prometheus' conventions: base units, `_total` for what only grows within a process. What goes
back when a run is resumed is a gauge.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections import Counter as Counted
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

from speedo.errors import ConfigError
from speedo.messages import Checkpointed, Drop, Evaluate, Merge, Tested, Train, Trained
from speedo.run_dir.checkpoint_file import Counters
from speedo.system.bounds import Option, Whole
from speedo.system.foreign_text import MOST_NAME, clean_text
from speedo.version import VERSION
from speedo.watch.export.base import Export, ExportedRun, Told
from speedo.watch.export.means import TestedIterations
from speedo.watch.own_names import names_us

if TYPE_CHECKING:
    from prometheus_client import Counter
    from prometheus_client.core import Metric

    from speedo.watch.status import Status

HOST: Final = "127.0.0.1"
STALENESS: Final = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)  # upper bounds of the buckets, in versions
DECISIONS: Final = ("merged", "discarded", "late", "refused")
STATES: Final = ("training", "waiting", "away")
MOST_LABELS: Final = 1000  # of one metric: workers name the parts of a turn, nets their outputs
READ_S: Final = 10.0  # for a request to arrive
PORTS_OF_A_MASTER: Final = 100


def _guarded(app: Any) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    """The application, for requests that name this server."""

    def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if names_us(environ.get("HTTP_HOST", "")):
            return app(environ, start)  # type: ignore[no-any-return]
        start("421 Misdirected Request", [("Content-Type", "text/plain")])
        return [b"this server has another name\n"]

    return answer


class PrometheusMetrics:
    """An exporter that counts, and answers scrapes from other threads.

    `status` is the state of the run now, `bytes_of` what a result and a turn carry: payload and center.
    """

    name = "the metrics for Prometheus"
    problem = ""  # nothing is written to a disk
    wants_weights = False

    def __init__(
        self,
        run: str,
        version: str,
        status: Callable[[], Status],
        bytes_of: Callable[[], tuple[int, int]],
        *,
        resumed: Counters | None = None,
    ) -> None:
        # It takes a while to import, and most runs do without.
        from prometheus_client import (
            CollectorRegistry,
            Counter,
            Gauge,
            Histogram,
            Summary,
            disable_created_metrics,
        )

        self._status, self._bytes_of = status, bytes_of
        self._info = {"run": run, "version": version}
        last = (0, 0) if resumed is None else (resumed.version, resumed.iteration)
        self._tests = TestedIterations(last)
        self._parts: set[str] = set()
        self._checkpoint_s = 0.0  # wall clock of the last one
        self._stop: Callable[[], None] = lambda: None
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()
        registry.register(self)

        def counter(name: str, help: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"speedo_{name}", help, labels, registry=registry)

        self._results = counter("results", "Results by what became of them.", ["decision"])
        for decision in DECISIONS:
            self._results.labels(decision)
        self._samples = counter("samples", "Records merged.")
        self._sent = counter("sent_bytes", "Bytes of the results that reached the master.")
        self._fetched = counter(
            "fetched_bytes", "Bytes of the centers that were fetched for turns."
        )
        self._turns = counter("turns", "Turns given to workers.")
        self._tests_made = counter("tests", "Tests of a version.")
        self._tests_failed = counter("failed_tests", "Tests that gave no metrics.")
        self._checkpoints = counter("checkpoints", "Checkpoints written.")
        self._staleness = Histogram(
            "speedo_result_staleness_versions",
            "Versions merged since the center that a merged result began from.",
            buckets=STALENESS,
            registry=registry,
        )
        self._seconds = Summary(
            "speedo_turn_part_seconds",
            "Where the seconds of a turn go: in the worker, and with master_ in the master.",
            ["part"],
            registry=registry,
        )
        self._tested = Gauge("speedo_test_result", "The last test.", ["output"], registry=registry)
        self._tested_iteration = Gauge(
            "speedo_tested_iteration", "Iteration of the last test.", registry=registry
        )

    def serve(self, port: int) -> int:
        """Answer at this port of loopback, 0 for any; returns the port. Raises `OSError` if it is taken."""
        from wsgiref.simple_server import WSGIRequestHandler, make_server

        from prometheus_client import make_wsgi_app
        from prometheus_client.exposition import ThreadingWSGIServer

        class Scrape(WSGIRequestHandler):
            """A request; nothing is logged."""

            timeout = READ_S

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        app = _guarded(make_wsgi_app(self._registry))
        server = make_server(HOST, port, app, ThreadingWSGIServer, Scrape)
        thread = threading.Thread(
            target=server.serve_forever, args=(0.05,), name="metrics", daemon=True
        )
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
        match told:
            case Train():
                self._turns.inc()
                self._fetched.inc(self._bytes_of()[1])
            case Trained():
                self._sent.inc(self._bytes_of()[0])
                for name, seconds in told.timings.items():
                    self._observe(name, seconds)
            case Merge():
                self._tests.last = (told.version, told.iteration)
                for part in told.parts:
                    self._results.labels("merged").inc()
                    self._samples.inc(part.samples)
                    self._staleness.observe(part.staleness)
                for timings in told.timings:
                    for name, seconds in timings.items():
                        self._observe(f"master_{name}", seconds)
            case Drop():
                self._results.labels(told.decision).inc()
            case Evaluate():
                self._tests.ask(told.version, told.iteration)
            case Tested() if told.problem:
                self._tests_failed.inc()
            case Tested():
                self._tests_made.inc()
                self._tested.clear()
                for name, value in islice(told.metrics.items(), MOST_LABELS):
                    if not math.isnan(value):
                        self._tested.labels(clean_text(name, MOST_NAME)).set(value)
                self._tested_iteration.set(self._tests.of(told.version))
            case Checkpointed() if told.bytes:
                self._checkpoints.inc()
                self._checkpoint_s = time.time()
            case _:
                pass

    def _observe(self, part: str, seconds: float) -> None:
        name = clean_text(part, MOST_NAME)
        if name in self._parts or len(self._parts) < MOST_LABELS:
            self._parts.add(name)
            self._seconds.labels(name).observe(seconds)

    # ------------------------------------------------------------ what is not counted, at a scrape

    def describe(self) -> Iterator[Metric]:
        """Nothing: a registry would scrape to learn the names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The state of the run as it is now; what is not known is left out."""
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        status = self._status()
        yield InfoMetricFamily("speedo_run", "The run.", {**self._info, "mode": status.mode})
        workers = GaugeMetricFamily("speedo_workers", "Workers by state.", labels=["state"])
        states = Counted("away" if one.is_away else one.state for one in status.workers)
        states["waiting"] = len(status.workers) - states["away"] - states["training"]
        for state in STATES:
            workers.add_metric([state], states[state])
        yield workers
        written = self._checkpoint_s or math.nan
        for name, help, value in (
            ("iteration", "Iterations done: samples merged over the batch of the solver.", status.iteration),
            ("max_iterations", "Iterations at which the run ends.", status.max_iter),
            ("epochs", "Passes over the training records.", status.epoch),
            ("version", "Version of the center.", status.version),
            ("loss", "Training loss, mean over ten seconds.", status.loss),
            ("images_per_second", "Records merged per second, mean over ten seconds.", status.images_per_s),
            ("training_seconds", "Seconds since the first turn of this process.", status.seconds),
            ("workers_wanted", "Workers that the hosts should run.", status.wanted),
            ("checkpoint_timestamp_seconds", "When the last checkpoint was written, in seconds since 1970.", written),
            ("checkpoint_age_seconds", "Seconds since the last checkpoint.", max(time.time() - written, 0.0)),
        ):  # fmt: skip
            if not math.isnan(value):
                yield GaugeMetricFamily(f"speedo_{name}", help, value)


def _make(
    run: ExportedRun,
    metrics_port: Annotated[
        int | None,
        Option("Serve metrics for Prometheus on this port of 127.0.0.1.", Whole(1, 65535)),
    ] = None,
) -> PrometheusMetrics | None:
    """A port that was taken since the check is told, and no more."""
    if metrics_port is None:
        return None
    metrics = PrometheusMetrics(run.name, VERSION, run.status, run.bytes_of, resumed=run.resumed)
    try:
        metrics.serve(metrics_port)
    except OSError as error:
        why = error.strerror or str(error)
        run.note(f"warning: no metrics: port {metrics_port} of {HOST}: {why}")
        return None
    return metrics


def _check(resumed: bool, metrics_port: int | None) -> dict[str, Any]:
    """Raises `ConfigError` if the port is taken."""
    if metrics_port is None:
        return {}
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, metrics_port))
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise ConfigError(
                f"metrics_port {metrics_port} cannot be served on {HOST} ({why}): give another"
            ) from None
    return {}


def _conflicts(config: Any) -> list[str]:
    port, last = config.metrics_port, config.port + PORTS_OF_A_MASTER - 1
    if port is None or not config.port <= port <= last:
        return []
    return [
        f"metrics_port is {port}, but a master listens at {config.port} to {last}; use a port outside of these"
    ]


EXPORT: Final = Export(_make, _check, _conflicts)
