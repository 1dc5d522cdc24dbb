"""The metrics of a run, read from their port by Prometheus' own parser."""

from __future__ import annotations

import http.client
import socket
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from speedo import messages
from speedo.master.plan import Plan
from speedo.messages import (
    Action,
    Checkpointed,
    Drop,
    Event,
    Merge,
    Trained,
)
from speedo.sgd_modes.rules import AddDelta
from speedo.sgd_modes.weed_out import WeedOut
from speedo.watch.export.base import Told
from speedo.watch.export.prometheus import DECISIONS, PrometheusMetrics
from speedo.watch.status import StatusBoard
from tests.support.simulation.simulate import simulate
from tests.support.simulation.world import Faults, World
from tests.watch.test_exports import merge, train


class Now:
    """An observer that hands on to one exporter at once."""

    def __init__(self, exporter: Any) -> None:
        self.exporter = exporter

    def saw(self, event: Event, now: float) -> None:
        self.exporter.take(event, now)

    def did(self, action: Action, now: float) -> None:
        self.exporter.take(action, now)


@pytest.fixture
def metrics() -> Iterator[PrometheusMetrics]:
    board = StatusBoard("weed-out", 200, 10, 1000)
    made = PrometheusMetrics("one", "0.1", lambda: board.status(9.0), lambda: (100, 1000))
    made.board = board  # type: ignore[attr-defined]
    yield made
    made.close()


def scraped(metrics: PrometheusMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample that Prometheus' own parser finds at the port, by name and labels."""
    port = metrics.serve(0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        assert family.type != "unknown", family.name
        for one in family.samples:
            samples[one.name, tuple(sorted(one.labels.items()))] = one.value
    return samples


def test_prometheus_reads_what_a_simulated_run_counted(metrics: PrometheusMetrics) -> None:
    """A run with faults: every result that reached the master is counted once, by what became of it."""
    seen, fates = Counter[str](), Counter[str]()

    class Both(Now):
        def saw(self, event: Event, now: float) -> None:
            seen["results"] += isinstance(event, Trained)
            super().saw(event, now)

        def did(self, action: Action, now: float) -> None:
            if isinstance(action, Merge):
                fates["merged"] += len(action.parts)
            elif isinstance(action, Drop):
                fates[action.decision] += 1
            metrics.board.did(action, now)  # type: ignore[attr-defined]
            super().did(action, now)

    faults = Faults(die=0.05, repeat=0.2, late=0.1, poison=0.1, return_s=0.5)
    world = World(faults=faults, slowness=lambda worker: (1.0, 1.0, 1.0, 5.0)[worker])
    simulation = simulate(
        WeedOut(AddDelta(), window=2), Plan(10, 200, workers=4), world=world, seed=3,
        observer=lambda trace: Both(metrics),
    )  # fmt: skip
    read = scraped(metrics)
    assert min(fates.values()) > 0
    assert {name: read["speedo_results_total", (("decision", name),)] for name in DECISIONS} == {
        name: float(fates[name]) for name in DECISIONS
    }
    assert read["speedo_iteration", ()] == simulation.outcome.iteration
    assert read["speedo_version", ()] == simulation.outcome.version
    assert read["speedo_samples_total", ()] == simulation.outcome.samples
    assert read["speedo_sent_bytes_total", ()] == 100 * seen["results"]
    assert read["speedo_result_staleness_versions_count", ()] == fates["merged"]
    least, most = (
        read["speedo_result_staleness_versions_bucket", (("le", le),)] for le in ("0.0", "+Inf")
    )
    assert 0 < least < most == fates["merged"]
    states = {
        name: read["speedo_workers", (("state", name),)] for name in ("training", "waiting", "away")
    }
    assert sum(states.values()) == 4
    assert read["speedo_run_info", (("mode", "weed-out"), ("run", "one"), ("version", "0.1"))] == 1


def test_tests_parts_of_a_turn_and_checkpoints_are_told(metrics: PrometheusMetrics) -> None:
    told: tuple[Told, ...] = (
        train(1),
        Trained(0, 1, 1, 0.5, 10, {"compute": 0.5, "fetch": 0.25}),
        merge(1),
        messages.Tested(1, {"accuracy": 0.75, "loss": float("nan")}),
        messages.Tested(2, {}, "no answer"),
        Checkpointed(1, 1, 0.5, 1000),
        Checkpointed(1, 1, 0.5, 0, "the disk is full"),
    )
    for one in told:
        metrics.take(one, 1.0)
    read = scraped(metrics)
    assert read["speedo_test_result", (("output", "accuracy"),)] == 0.75
    assert ("speedo_test_result", (("output", "loss"),)) not in read
    assert (read["speedo_tests_total", ()], read["speedo_failed_tests_total", ()]) == (1, 1)
    assert read["speedo_turn_part_seconds_sum", (("part", "compute"),)] == 0.5
    assert read["speedo_turn_part_seconds_count", (("part", "master_merge"),)] == 1
    assert read["speedo_checkpoints_total", ()] == 1
    assert 0 <= read["speedo_checkpoint_age_seconds", ()] < 60
    assert abs(read["speedo_checkpoint_timestamp_seconds", ()] - time.time()) < 60
    assert read["speedo_fetched_bytes_total", ()] == 1000


def test_metrics_are_served_on_loopback_alone_and_no_more_after_the_run(
    metrics: PrometheusMetrics,
) -> None:
    port = metrics.serve(0)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as there:
        assert there.getpeername()[0] == "127.0.0.1"
    with (
        pytest.raises(ConnectionRefusedError),
        socket.create_connection(("127.0.0.2", port), timeout=5),
    ):
        pass
    metrics.close()
    with (
        pytest.raises(ConnectionRefusedError),
        socket.create_connection(("127.0.0.1", port), timeout=5),
    ):
        pass


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:{port}", 200), ("localhost:{port}", 200), ("[::1]:80", 200), ("evil.example:{port}", 421),
     ("evil.example", 421), ("10.0.0.1:{port}", 421), ("", 421)],
)  # fmt: skip
def test_only_requests_that_name_this_server_are_answered(
    host: str, status: int, metrics: PrometheusMetrics
) -> None:
    """A page in the user's browser whose name was made to point here (DNS rebinding) reads nothing."""
    port = metrics.serve(0)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest("GET", "/metrics", skip_host=True)
    connection.putheader("Host", host.format(port=port))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == status
    assert (b"speedo_run" in answer.read()) == (status == 200)
    connection.close()


def test_names_that_a_worker_or_a_net_chose_stay_labels(metrics: PrometheusMetrics) -> None:
    metrics.take(messages.Tested(1, {'a\x1b[31m\ud800\n"}': 0.5}), 1.0)
    for number in range(2000):
        metrics.take(Trained(0, 1, number, 1.0, 10, {f"part{number}\udcff": 0.1}, ()), 1.0)
    found = scraped(metrics)
    assert found["speedo_test_result", (("output", r'a\x1b[31m\ud800\n"}'),)] == 0.5
    assert sum(name == "speedo_turn_part_seconds_count" for name, _ in found) == 1000
