"""What the run log makes of repetitions, of trouble between two lines, and of versions that nobody tests."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from pathlib import Path

from speedo import messages
from speedo.engines.quadratic import QuadraticEngine
from speedo.master.center import Center
from speedo.master.coordinator import Coordinator
from speedo.master.driver import Driver
from speedo.master.plan import Plan
from speedo.messages import Command, Drop, Evaluate, Merge, Part, StoreTrouble, Trained
from speedo.run_dir.checkpoint_file import Counters
from speedo.run_dir.directory import METRICS
from speedo.run_dir.events import MasterBegan, read_events
from speedo.run_dir.metrics_log import MetricsLog
from speedo.sgd_modes.rules import AverageDeltas
from speedo.sgd_modes.synchronous import Synchronous
from speedo.storage.memory_store import MemoryStore
from speedo.watch.status import StatusBoard
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.world import World


def test_a_late_repetition_does_not_take_the_timings_of_the_result(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, start=0.0)
    result = Trained(0, 1, 7, 0.5, 10, {"compute": 0.25})
    log.saw(result, 1.0)
    log.saw(Trained(0, 1, 7, 0.5, 10, {}), 1.1)
    log.did(Drop(0, 1, 7, "late", "its ticket is not outstanding", loss=0.5), 1.1)
    log.did(Merge(1, 1, 10, 1.0, (Part(0, 1, 7, 10, 0, 0.5),)), 1.2)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert [line["decision"] for line in lines] == ["late", "merged"]
    assert lines[1]["timings"] == {"compute": 0.25}


def test_a_line_that_is_made_up_has_the_records_of_its_result(tmp_path: Path) -> None:
    """Those of a script seemed to be trained by nobody, after a standby had taken over."""
    log = MetricsLog(tmp_path, start=0.0, resumed=True)
    part = Part(0, 1, 7, 10, 0, 0.5, records=((2, 0, 10),))
    log.make_up([Merge(1, 1, 10, 1.0, (part,))], 1.0)
    log.close()
    (line,) = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert line["records"] == [[2, 0, 10]]


def test_each_master_says_what_a_clock_on_the_wall_shows_and_how_many_records_there_are(
    tmp_path: Path,
) -> None:
    for start, resumed in ((100.0, False), (7.0, True)):
        log = MetricsLog(tmp_path, start=start, resumed=resumed)
        log.clock(datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC), start + 1.5, 160)
        log.close()
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    at = "2026-01-02T03:04:05.678+00:00"
    assert lines == [
        {"time": 1.5, "event": "clock", "at": at, "records": 160},
        {"time": 3.0, "event": "clock", "at": at, "records": 160},
    ]
    assert list(read_events(tmp_path)) == [MasterBegan(160, 1.5), MasterBegan(160, 3.0)]


def test_a_run_that_goes_back_says_how_many_merges_are_undone(tmp_path: Path) -> None:
    """It said only that another master had taken over: 26,240 merged lines, and 25,600 in the result."""

    def at(version: int) -> Counters:
        return Counters("run", 1, "async", version, 10 * version, 10 * version, version, 0.0, 5)

    def merged(log: MetricsLog, *versions: int) -> None:
        for version in versions:
            log.did(
                Merge(version, 10 * version, 10 * version, 1.0, (Part(0, 1, version, 10, 0, 0.5),)),
                0.0,
            )
        log.close()

    merged(MetricsLog(tmp_path, start=0.0), *range(1, 13))
    undone = []
    for epoch, version in ((1, 8), (2, 9), (3, 0)):
        log = MetricsLog(tmp_path, start=0.0, resumed=True)
        undone.append(log.resume(epoch, at(version) if version else None, 0.0, "the master died"))
        merged(log, *range(version + 1, 10))
        undone.append(log.undone)
    assert undone == [4, 4, 0, 4, 9, 13]
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert [line.get("undone") for line in lines if line["event"] == "resumed"] == [4, None, 9]


def test_what_json_has_no_word_for_does_not_end_the_run(tmp_path: Path) -> None:
    """A loss that is not finite, and the name of a file that is not UTF-8."""
    log = MetricsLog(tmp_path, start=0.0)
    log.did(Drop(0, 1, 7, "refused", "no \udcff here", loss=float("nan")), 1.2)
    log.did(Drop(0, 1, 8, "refused", "two\u2028lines", loss=float("inf")), 1.3)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_bytes().splitlines()]
    assert [line["loss"] for line in lines] == [None, None]
    assert [line["reason"] for line in lines] == ["no \udcff here", "two\u2028lines"]


def test_trouble_is_told_after_what_was_done_before_it(tmp_path: Path) -> None:
    """A merge is told when the next turns are under way; what goes wrong with these comes after it in time."""
    log, store = MetricsLog(tmp_path, start=0.0), MemoryStore()

    class Troubled(SimulatedCluster):
        def send(self, command: Command) -> None:
            if command.version == 2:
                self.now += 1.0
                driver.tell(StoreTrouble("away"))
                self.now += 1.0
                driver.tell(StoreTrouble(""))
            super().send(command)

    cluster = Troubled(World(jitter=0.0), store, "run", lambda rank: QuadraticEngine(rank=rank), 0)
    for worker in range(2):
        cluster.join(worker)
    engine = QuadraticEngine()
    center = Center("run", engine.layout.zeros(), engine.layout, store)
    coordinator = Coordinator(Synchronous(AverageDeltas()), Plan(2, 4, workers=2))
    driver = Driver(coordinator, center, cluster, log, lambda: cluster.now)
    driver.run()
    log.close()
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    second = [line.get("version") for line in lines].index(2)
    assert "store" not in [line["event"] for line in lines[:second]]
    assert [line["event"] for line in lines[second + 2 :]][:2] == ["store", "store"]


def test_trouble_is_in_the_file_while_what_it_delays_is_still_written_together(
    tmp_path: Path,
) -> None:
    """A master that decides several results at once may stand in the midst of them until the store is back."""
    log = MetricsLog(tmp_path, start=0.0)
    with log.together():
        log.saw(StoreTrouble("out of memory"), 1.0)
        (line,) = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
        assert line["problem"] == "out of memory"


def test_versions_that_nobody_tests_leave_nothing_behind(tmp_path: Path) -> None:
    """A master that merges a hundred times a second for days would hold them all."""
    log = MetricsLog(tmp_path, start=0.0)
    board = StatusBoard("async", max_iter=10**9, batch=10, records=1000)
    for observer in (log, board):
        sizes = []
        for half in range(2):
            for version in range(1, 1001):
                number = 1000 * half + version
                observer.did(Merge(number, number, 10, 1.0, ()), 1.0)
                if version % 100 == 0:
                    observer.did(Evaluate(number, number), 1.0)
                    observer.saw(messages.Tested(number, {"accuracy": 0.5}), 1.0)
            sizes.append(len(pickle.dumps(vars(observer) | {"_file": None})))
        assert abs(sizes[1] - sizes[0]) < 20, sizes
