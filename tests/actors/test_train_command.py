"""`speedo train` as a user runs it: what it leaves, how it stops, what it survives."""

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
import yaml

from speedo.actors.death_causes import SILENT
from speedo.run_dir.checkpoint_file import checkpoints_in, read_checkpoint
from tests.support.commands import Commands, how_loaded, wait_for_line

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240


def long(problem: Path, workers: int = 1) -> tuple[str, ...]:
    return (
        "train", str(problem), "--mode", "async", "--max-iter", "1000000", "--test-interval", "0",
        "--run-dir", "run", "--workers", str(workers),
    )  # fmt: skip


def lines_in(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").open()]


def test_a_run_leaves_configuration_metrics_result_and_model(
    speedo: Commands, tmp_path: Path
) -> None:
    process = speedo.start(
        "train", "--mode", "partial", "--workers", "2", "--max-iter", "30", "--test-interval", "20",
        "--seed", "5", "--run-dir", "run",
    )  # fmt: skip
    out, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    run = tmp_path / "run"
    result = json.loads((run / "result.json").read_text())
    assert out.splitlines()[-1] == result["model"] == str(run / "model.caffemodel")
    assert f"test accuracy {result['accuracy']:.4f} after 30 iterations" in out
    assert (result["iteration"], result["version"], result["complete"]) == (30, 30, True)
    assert {"mode", "workers", "images_per_s", "seconds"} <= set(result)
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["mode"], config["max_iter"], config["seed"]) == ("partial", 30, 5)
    lines = lines_in(run)
    tests = [(line["version"], line["iteration"]) for line in lines if line["event"] == "test"]
    assert tests == [(0, 0), (20, 20), (30, 30)]
    assert "effective" in errors or "batch 64 per worker" in errors
    assert "learning rate 0.01 (inv)" in errors
    assert "iteration 30/30" in (run / "train.log").read_text()


def test_a_signal_to_every_process_stops_cleanly_and_exports(
    speedo: Commands, tested_problem: Path, tmp_path: Path
) -> None:
    """As from systemd, and a machine that shuts down, whatever the group. For Ctrl-C see test_restarts.py."""
    process = speedo.start(*long(tested_problem))
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":10,', 90)
    for one in speedo.left():
        with suppress(psutil.NoSuchProcess):
            one.terminate()
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    assert "Traceback" not in errors
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["complete"], result["reason"]) == (False, "stopped by SIGTERM")
    assert result["iteration"] >= 10
    assert Path(result["model"]).exists()
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
