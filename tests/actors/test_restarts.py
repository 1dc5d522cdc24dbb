"""Workers that die, hang, or are too few: started again, ended, given up, given other shards."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from speedo.actors.death_causes import SILENT
from speedo.actors.worker_process import STOPPED
from tests.support.commands import Commands, described, how_loaded, interrupt, wait_for_line

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240
ENDLESS = ("--max-iter", "1000000", "--test-interval", "0", "--run-dir", "run")


class Running:
    """A run under way, seen from outside."""

    def __init__(self, speedo: Commands, solver: Path, *options: str) -> None:
        self.speedo, self.run = speedo, speedo.folder / "run"
        self.process = speedo.start("train", str(solver), *ENDLESS, *options)
        wait_for_line(self.run / "metrics.jsonl", '"version":10,', WAIT_S)

    def lines(self, *events: str) -> list[dict[str, Any]]:
        text = (self.run / "metrics.jsonl").read_text()
        names = [f'"event":"{event}"' for event in events]
        found = [line for line in text.splitlines() if line.endswith("}")]
        return [json.loads(line) for line in found if not events or any(map(line.count, names))]

    def wait_for(self, what: Callable[[], bool], seconds: float = 60.0) -> None:
        began = time.monotonic()
        while not what():
            assert self.process.poll() is None, self.process.communicate()[1]
            late = time.monotonic() > began + seconds * how_loaded()
            assert not late, (described(what), self.lines()[-5:], self.log())
            time.sleep(0.1)

    def joined(self, worker: int, incarnation: int) -> bool:
        return any(
            (line["worker"], line["incarnation"]) == (worker, incarnation)
            for line in self.lines("joined")
        )

    def merged(self, worker: int, incarnation: int) -> list[dict[str, Any]]:
        return [
            line
            for line in self.lines("result")
            if line["decision"] == "merged"
            and (line["worker"], line["incarnation"]) == (worker, incarnation)
        ]

    def log(self) -> str:
        return (self.run / "train.log").read_text()

    def workers(self) -> dict[int, psutil.Process]:
        return self.speedo.workers()

    def stop(self) -> str:
        interrupt(self.process)
        _, errors = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 130, errors
        assert "Traceback" not in errors
        assert not list((self.run / "logs").glob("speedo-engine-*"))
        return errors


@pytest.fixture
def running(speedo: Commands, problem: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(*options: str) -> Running:
        started.append(Running(speedo, problem, *options))
        return started[-1]

    yield start
    for run in started:
        run.process.kill()  # one that a failed test has left; nothing of it outlives it


def test_workers_are_scaled_and_started_again_in_their_slots_until_they_are_given_up(
    running: Callable[..., Running],
) -> None:
    run = running("--mode", "async", "--workers", "2", "--restarts", "1")
    said = run.speedo.start("scale", "3")
    out, errors = said.communicate(timeout=WAIT_S)
    assert said.returncode == 0, errors
    assert "3 workers wanted: here 3" in out
    run.wait_for(lambda: len(run.merged(2, 1)) > 0)
    assert run.speedo.start("scale", "2").wait(WAIT_S) == 0
    run.wait_for(lambda: set(run.workers()) == {0, 1} and len(run.lines("left")) > 0)
    (left,) = run.lines("left")
    assert (left["worker"], left["cause"]) == (2, "fewer workers are wanted")

    run.workers()[1].kill()
    run.wait_for(lambda: run.joined(1, 2))
    run.wait_for(lambda: len(run.merged(1, 2)) >= 3)
    lines = run.lines("joined", "result")
    back = next(at for at, line in enumerate(lines) if line.get("incarnation") == 2)
    merged_before = sum(line.get("decision") == "merged" for line in lines[:back])
    first = run.merged(1, 2)[0]
    # Every result is merged here: so many were since the center that this turn began with.
    assert first["version"] - 1 - first["staleness"] >= merged_before
    assert [line["cause"] for line in run.lines("left")[1:]] == [SILENT]
    run.wait_for(lambda: "worker 1 on here is back" in run.log())
    assert f"worker 1 on here is restarting in 1 s: {SILENT}" in run.log()

    run.workers()[1].send_signal(signal.SIGSEGV)
    run.wait_for(lambda: "gone, given up" in run.log() and len(run.lines("left")) > 2)
    second = run.lines("left")[2]
    assert second["cause"].startswith("native code failed: ")
    assert f"worker 1 on here is gone, given up after 1 restarts: {second['cause']}" in run.log()
    before = len(run.merged(0, 1))
    run.wait_for(lambda: len(run.merged(0, 1)) > before + 10)
    assert list(run.workers()) == [0]
    errors = run.stop()
    result = json.loads((run.run / "result.json").read_text())
    assert (result["complete"], result["reason"]) == (False, "stopped by Ctrl-C")
    assert result["warning"].startswith("worker 1 was given up at iteration ")
    assert f"({second['cause']}): its share of the data, " in result["warning"]
    assert result["warning"].endswith(" records, was not read after that")
    assert f"warning: {result['warning']}" in errors
    assert result["iteration"] == len(
        [one for one in run.lines("result") if one["decision"] == "merged"]
    )
    assert Path(result["model"]).exists()


@pytest.mark.matrix
def test_another_master_knows_who_was_given_up_before(running: Callable[..., Running]) -> None:
    run = running("--mode", "async", "--workers", "2", "--restarts", "0")
    run.workers()[1].kill()
    run.wait_for(lambda: f"worker 1 on here is gone, given up: {SILENT}" in run.log())
    (master,) = run.speedo.named("MasterActor")
    master.kill()
    run.wait_for(lambda: "another one takes over" in run.log())
    before = len(run.merged(0, 1))
    run.wait_for(lambda: len(run.merged(0, 1)) > before + 10)
    run.stop()
    warning = json.loads((run.run / "result.json").read_text())["warning"]
    assert warning.startswith("worker 1 was given up at iteration ")
    assert f"({SILENT}): its share of the data, " in warning


def test_a_stopped_worker_is_evicted_ended_and_started_again(
    running: Callable[..., Running],
) -> None:
    """SIGSTOP: it hears neither Ray nor any signal but SIGKILL."""
    run = running("--mode", "sync", "--workers", "2")
    victim = run.workers()[0]
    victim.suspend()
    run.wait_for(lambda: bool(run.lines("left")), 40)
    (left,) = run.lines("left")
    assert (left["worker"], left["incarnation"]) == (0, 1)
    assert left["cause"] == STOPPED
    victim.wait(120)
    run.wait_for(lambda: len(run.merged(0, 2)) > 0)
    run.stop()


@pytest.mark.matrix
def test_the_two_who_are_left_share_batch_and_data_anew(running: Callable[..., Running]) -> None:
    run = running(
        "--mode", "sync", "--workers", "3", "--restarts", "0", "--data-share", "reshard_after=2", "--team", "stretch=0"
    )  # fmt: skip
    assert {line["samples"] for line in run.merged(0, 1)} == {3}
    run.workers()[1].kill()
    run.wait_for(lambda: len(run.merged(2, 2)) >= 5)
    left = {(line["worker"], line["incarnation"]): line["cause"] for line in run.lines("left")}
    assert left == {
        (1, 1): SILENT,
        (0, 1): "takes a new shard: 1 of 2, batch 4",
        (2, 1): "takes a new shard: 2 of 2, batch 4",
    }
    after = run.merged(0, 2) + run.merged(2, 2)
    assert {line["samples"] for line in after} == {4}
    # A round that both were in merges one batch of the solver's.
    versions = [line["version"] for line in after]
    assert any(versions.count(version) == 2 for version in versions)
    assert set(run.workers()) == {0, 2}
    late = [line for line in run.lines("result") if line["decision"] == "late"]
    assert all(line["incarnation"] == 1 for line in late)
    run.stop()
