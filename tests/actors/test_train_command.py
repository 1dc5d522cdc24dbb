"""`speedo train` as a user runs it: how it stops, and what it survives."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from speedo.actors.death_causes import SILENT
from speedo.run_dir.checkpoint_file import checkpoints_in, read_checkpoint
from tests.support.commands import Commands, how_loaded, wait_for_line, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240


def long(problem: Path, workers: int = 1) -> tuple[str, ...]:
    return (
        "train", str(problem), "--mode", "async", "--max-iter", "1000000", "--test-interval", "0",
        "--run-dir", "run", "--workers", str(workers),
    )  # fmt: skip


def lines_in(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").open()]


def test_a_killed_tester_is_replaced_and_a_signal_to_every_process_stops_cleanly_and_exports(
    speedo: Commands, tested_problem: Path, tmp_path: Path
) -> None:
    """As from systemd, and a machine that shuts down, whatever the group. For Ctrl-C see test_restarts.py."""
    run = tmp_path / "run"
    options = ("--test-interval", "50", "--test-interval", "testers=2")
    process = speedo.start(*long(tested_problem), *options)
    wait_for_line(run / "metrics.jsonl", '"event":"test"', 60)
    testers = speedo.named("TesterActor")
    assert len(testers) == 2, "they share each test"
    testers[0].kill()
    psutil.wait_procs(testers[:1], 10)
    wait_until(lambda: len(set(speedo.named("TesterActor")) | set(testers)) == 3)
    wait_for_line(run / "metrics.jsonl", '"version":10,', 90)
    for one in speedo.left():
        with suppress(psutil.NoSuchProcess):
            one.terminate()
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    assert "Traceback" not in errors
    result = json.loads((run / "result.json").read_text())
    assert (result["complete"], result["reason"]) == (False, "stopped by SIGTERM")
    assert result["iteration"] >= 10
    assert Path(result["model"]).exists()
    assert result["test_problem"] == ""
    tests = [line for line in lines_in(run) if line["event"] == "test"]
    (last,) = [one for one in tests if one["iteration"] == result["iteration"]]
    assert (last["problem"], last["metrics"]["accuracy"]) == (None, result["accuracy"])
    assert "test accuracy" in out


def test_a_signal_as_soon_as_workers_train_keeps_a_checkpoint_and_exports(
    speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    """The command is at its start still. As from `timeout`: the process, then its group, and so itself once more."""
    run = tmp_path / "run"
    process = speedo.start(*long(problem))
    while not ((log := run / "metrics.jsonl").exists() and "joined" in log.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.terminate()
    os.killpg(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    assert "SIGTERM: stopping; the model so far is tested and exported" in errors
    assert "Traceback" not in errors
    result = json.loads((run / "result.json").read_text())
    assert (result["complete"], result["reason"]) == (False, "stopped by SIGTERM")
    (checkpoint,) = checkpoints_in(run / "checkpoints")
    assert read_checkpoint(checkpoint).counters.iteration == result["iteration"]
    assert f"stopped by SIGTERM; continue with --resume {run}" in errors
    assert Path(result["model"]).exists()


def test_a_tester_that_cannot_start_ends_the_run_with_the_cause(
    speedo: Commands, tested_problem: Path, tmp_path: Path
) -> None:
    """Not hours later, when its first test is due."""
    process = speedo.start(
        *long(tested_problem), "--test-interval", "1000000",
        environment={"SPEEDO_FAILPOINT": "tester-starting"},
    )  # fmt: skip
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1, errors
    log = tmp_path / "run" / "logs" / "tester.log"
    last = errors.splitlines()[-1]
    assert last.startswith("speedo: the tester could not start: "), errors
    assert last.endswith(f"; see {log}")
    assert "Traceback" not in errors


def test_a_terminal_that_is_closed_stops_the_run_and_the_model_is_exported(
    speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    ours, theirs = os.openpty()
    process = speedo.start(*long(problem), terminal=theirs)
    os.close(theirs)
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120 * how_loaded()
    while not (metrics.exists() and '"version":10,' in metrics.read_text()):
        assert time.monotonic() < deadline
        if select.select([ours], [], [], 0.1)[0]:
            os.read(ours, 65536)
    os.close(ours)
    assert process.wait(120) == 129
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["complete"], result["reason"]) == (False, "stopped by SIGHUP")
    assert Path(result["model"]).exists()


def test_a_killed_worker_is_told_and_when_every_one_dies_the_run_ends_with_the_cause(
    speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    process = speedo.start(*long(problem, 2), "--restarts", "0")
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for_line(metrics, '"version":10,', 90)
    victim = speedo.named("ray::WorkerActor")[0]
    killed = time.monotonic()
    victim.kill()
    wait_for_line(metrics, '"event":"left"', 10)
    assert time.monotonic() - killed < 10 * how_loaded()
    merged = metrics.read_text().count('"decision":"merged"')
    deadline = time.monotonic() + WAIT_S
    while metrics.read_text().count('"decision":"merged"') < merged + 100:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for last in speedo.named("ray::WorkerActor"):
        last.kill()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 3, errors
    assert f"every worker died, the last: {SILENT}" in errors
    lines = lines_in(tmp_path / "run")
    left = [line for line in lines if line["event"] == "left"]
    assert [line["cause"] for line in left] == [SILENT, SILENT]
    results = [line for line in lines if line.get("decision") == "merged"]
    assert len({(line["worker"], line["ticket"]) for line in results}) == len(results)
    done = json.loads((tmp_path / "run" / "result.json").read_text())["iteration"]
    assert done == len(results) >= 110
