"""What is read of a run's log while it grows, is replaced and is damaged; and of a run with and without a master."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from speedo.errors import ClusterError
from speedo.master.plan import Plan
from speedo.run_dir.checkpoint_file import Counters
from speedo.run_dir.directory import METRICS, write_result
from speedo.run_dir.events import WorkerLeft
from speedo.run_dir.metrics_log import MetricsLog
from speedo.sgd_modes.rules import AddDelta
from speedo.sgd_modes.weed_out import WeedOut
from speedo.watch.control_socket import ControlServer
from speedo.watch.live.history import MOST_STALENESS, LogHistory, LogReader
from speedo.watch.live.live_run import LiveRun
from tests.support.simulation.simulate import simulate
from tests.support.simulation.world import Faults, World


def simulated(folder: Path) -> None:
    """The log of a run with deaths, and results that are late, refused and discarded."""
    log = MetricsLog(folder, start=0.0)
    faults = Faults(die=0.05, repeat=0.2, late=0.1, poison=0.1, return_s=0.5)
    world = World(faults=faults, slowness=lambda worker: (1.0, 1.0, 1.0, 5.0)[worker])
    simulate(
        WeedOut(AddDelta(), window=2), Plan(10, 200, workers=4), world=world, seed=3, observer=lambda trace: log
    )  # fmt: skip
    log.close()


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def read_all(reader: LogReader) -> LogHistory:
    while reader.read():
        pass
    return reader.history


def test_every_line_of_a_log_counts_once_however_it_arrives(tmp_path: Path) -> None:
    simulated(tmp_path)
    data = (tmp_path / METRICS).read_bytes()
    whole = read_all(LogReader(tmp_path))
    growing = tmp_path / "growing"
    growing.mkdir()
    reader = LogReader(growing)
    with (growing / METRICS).open("wb", buffering=0) as file:
        for start in range(0, len(data), 97):  # lines arrive torn
            file.write(data[start : start + 97])
            reader.read()
    assert reader.history.loss.points() == whole.loss.points()
    assert reader.history.workers == whole.workers
    results = [line for line in lines(tmp_path) if line["event"] == "result"]
    assert whole.decisions == Counter(line["decision"] for line in results)
    merged = [line for line in results if line["decision"] == "merged"]
    assert (whole.iteration, whole.version) == (merged[-1]["iteration"], merged[-1]["version"])
    assert whole.staleness == Counter(min(line["staleness"], MOST_STALENESS) for line in merged)
    for number, worker in whole.workers.items():
        own = [line for line in merged if line["worker"] == number]
        assert worker.merged == len(own)
        assert worker.staleness == pytest.approx(
            sum(line["staleness"] for line in own[-20:]) / len(own[-20:])
        )
        left = [
            line for line in lines(tmp_path) if line["event"] == "left" and line["worker"] == number
        ]
        if left:
            assert worker.cause == left[-1]["cause"]
    assert sum(worker.deaths for worker in whole.workers.values()) > 0
    assert whole.finished


def test_a_line_that_no_run_writes_is_passed_over(tmp_path: Path) -> None:
    simulated(tmp_path)
    before = read_all(LogReader(tmp_path))
    text = (tmp_path / METRICS).read_bytes()
    rubbish = (
        b"\n{}\nnull\n[1]\n\xff\xfe\n" + b"[" * 5000 + b"\n"
        b'{"time": 1, "event": "result", "decision": "merged", "worker": 99999999, "iteration": 1}\n'
        b'{"time": 1e300, "event": "joined", "worker": 0}\n{"time": 1, "event": "result", "decision": "x"}\n'
    )
    (tmp_path / METRICS).write_bytes(rubbish + text + rubbish)
    after = read_all(LogReader(tmp_path))
    assert after.loss.points() == before.loss.points()
    assert after.decisions == before.decisions
    assert set(after.workers) == set(before.workers)


def result(worker: int, iteration: int, time: float, loss: float | None = 0.5) -> dict[str, Any]:
    return {
        "time": time, "event": "result", "decision": "merged", "worker": worker, "incarnation": 1, "ticket": iteration,
        "version": iteration, "iteration": iteration, "staleness": 1, "samples": 64, "loss": loss, "rate": 1.0,
        "timings": {},
    }  # fmt: skip


def write(folder: Path, *found: dict[str, Any], mode: str = "a") -> None:
    with (folder / METRICS).open(mode) as file:
        file.writelines(f"{json.dumps(one)}\n" for one in found)


def test_a_resumed_run_takes_back_what_was_undone_and_its_log_is_another_file(
    tmp_path: Path,
) -> None:
    reader = LogReader(tmp_path)
    write(tmp_path, {"time": 0.1, "event": "joined", "worker": 0, "incarnation": 1, "host": "here"})
    write(tmp_path, *(result(0, one, one / 10) for one in range(1, 51)))
    metrics = {"accuracy": 0.5}
    write(
        tmp_path, {"time": 5.0, "event": "test", "version": 50, "iteration": 50, "metrics": metrics}
    )
    history = read_all(reader)
    assert (len(history.loss), len(history.tests["accuracy"]), history.workers[0].there) == (
        50,
        1,
        True,
    )

    log = MetricsLog(tmp_path, start=0.0, resumed=True)  # as a new master does
    log.resume(1, Counters("one", 1, "async", 40, 40, 400, 40, 1.0, 1), 6.0)
    log.close()
    history = read_all(reader)
    assert (len(history.loss), len(history.tests["accuracy"])) == (40, 0)
    assert (history.iteration, history.workers[0].there, history.resumed) == (40, False, 1)
    write(tmp_path, result(0, 41, 12.0, loss=None))
    history = read_all(reader)
    # A loss that is not finite is no point
    assert (history.iteration, len(history.loss)) == (
        41,
        40,
    )
    assert math.isnan(history.workers[0].loss)


def test_farewells_after_the_end_are_no_deaths(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"time": 0.1, "event": "joined", "worker": 0, "incarnation": 1},
        {"time": 1.0, "event": "finish", "complete": True, "reason": "reached max_iter 9"},
        {"time": 1.1, "event": "left", "worker": 0, "incarnation": 1, "cause": "released"},
    )
    history = read_all(LogReader(tmp_path))
    assert (history.workers[0].deaths, history.finished) == (0, "reached max_iter 9")


def test_a_long_log_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speedo.watch.live.history.MOST_BYTES", 1000)
    write(tmp_path, *(result(0, one, one / 10) for one in range(1, 101)))
    reader = LogReader(tmp_path)
    assert reader.read()
    assert 0 < reader.fraction < 0.2
    assert read_all(reader).iteration == 100
    assert reader.fraction == 1.0


# ---------------------------------------------------------------- with and without a master


def status(folder: Path, **fields: Any) -> dict[str, Any]:
    worker = {"worker": 0, "host": "alpha", "state": "training", "away": False, "merged": 1, "dropped": 0, "loss": 0.5,
              "images_per_s": 100.0, "process": 7, "threads": 1, "cores": "0", "team": None}  # fmt: skip
    return {
        "run": "1a2b", "run_dir": str(folder), "state": "training", "mode": "async", "iteration": 10, "max_iter": 110,
        "epoch": 0.5, "loss": 0.25, "images_per_s": 640.0, "version": 10, "metrics": {}, "wanted": 1,
        "workers": [worker], "servers": [], "notices": ["a notice"], "checkpoint_iteration": 5, **fields,
    }  # fmt: skip


def test_a_run_is_live_while_it_has_a_master_whichever_it_is(tmp_path: Path, runtime: Path) -> None:
    write(tmp_path, *(result(0, one, one / 10) for one in range(1, 11)))
    live = LiveRun(tmp_path)
    live.look()
    assert (live.now()["live"], live.now()["state"]) == (False, "no master")
    assert f"--resume {tmp_path}" in live.now()["reason"]
    with pytest.raises(ClusterError, match="no master"):
        live.stop()
    other = ControlServer("other", lambda asked: status(tmp_path / "elsewhere"))
    with other, ControlServer("1a2b", lambda asked: status(tmp_path)):
        live.look()
        now = live.now()
        assert (now["live"], now["state"], now["mode"], now["loss"]) == (
            True,
            "training",
            "async",
            0.25,
        )
        assert now["remaining_s"] == pytest.approx(10.0)
        assert (now["workers"][0]["host"], now["workers"][0]["staleness"]) == ("alpha", 1.0)
    live.look()
    assert (live.now()["state"], live.now()["max_iter"]) == ("no master", 110)
    with ControlServer("1a2b", lambda asked: status(tmp_path, iteration=20)):
        live.look()
        assert (live.now()["live"], live.now()["iteration"]) == (True, 20)
        live.look()
        assert live.now()["live"]


def test_a_master_that_cannot_answer_is_told(tmp_path: Path, runtime: Path) -> None:
    answers = [status(tmp_path), status(tmp_path), None]

    def answer(asked: object) -> Any:
        said = answers.pop(0)
        if said is None:
            raise ClusterError("the master did not answer within 20 s: try again")
        return said

    with ControlServer("1a2b", answer):
        live = LiveRun(tmp_path)
        live.look()
        live.look()
        assert live.now()["state"] == "no answer"
        assert "did not answer within 20 s" in live.now()["reason"]
        assert live.is_live


def test_a_run_that_has_ended_is_shown_as_it_was(tmp_path: Path, runtime: Path) -> None:
    simulated(tmp_path)
    write_result(tmp_path, {"iteration": 200, "accuracy": 0.9, "reason": "reached max_iter 200", "model": "m",
                            "complete": True, "mode": "weed-out"})  # fmt: skip
    live = LiveRun(tmp_path)
    live.look()
    now = live.now()
    assert (now["state"], now["reason"], now["mode"]) == (
        "finished",
        "reached max_iter 200",
        "weed-out",
    )
    assert now["iteration"] == now["max_iter"] >= 200
    assert {one["state"] for one in now["workers"]} == {"ended"}
    assert set(live.curves()) >= {"loss", "images/s"}


def test_the_end_of_a_script_is_no_death_and_its_run_counts_samples(
    tmp_path: Path, runtime: Path
) -> None:
    history = LogHistory()
    for worker, cause in enumerate(("its script has ended", "killed")):
        history.take(WorkerLeft(worker, cause, 1.0))
    assert [(one.deaths, one.cause) for one in history.workers.values()] == [(0, ""), (1, "killed")]
    write_result(
        tmp_path, {"iteration": 2, "reason": "every script has ended", "model": "model.npz"}
    )
    live = LiveRun(tmp_path)
    live.look()
    assert live.now()["counted"] == "samples"


def test_a_run_without_a_log_yet_is_not_begun(tmp_path: Path, runtime: Path) -> None:
    live = LiveRun(tmp_path)
    live.look()
    assert live.now()["state"] == "not begun"
