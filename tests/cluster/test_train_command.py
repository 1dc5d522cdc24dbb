"""`speedo train` as a user runs it: what it leaves, how it stops, what it survives."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import yaml

from speedo.actors.deaths import SILENT
from tests.cluster.commands import Commands, interrupt, wait_for_line

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 120


def long(problem: Path, iterations: int = 1_000_000) -> tuple[str, ...]:
    return (
        "train", str(problem), "--mode", "async", "--max-iter", str(iterations), "--test-interval", "0",
        "--run-dir", "run",
    )  # fmt: skip


def actors(speedo: Commands, kind: str) -> list[psutil.Process]:
    """Processes of this kind of actor, by the name that Ray gives them."""
    return [process for process in speedo.left() if f"ray::{kind}" in " ".join(process.cmdline())]


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
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    tests = [(line["version"], line["iteration"]) for line in lines if line["event"] == "test"]
    assert tests == [(0, 0), (20, 20), (30, 30)]
    assert "effective" in errors or "batch 64 per worker" in errors
    assert "learning rate 0.01 (inv)" in errors
    assert "iteration 30/30" in (run / "train.log").read_text()


def test_ctrl_c_stops_cleanly_and_exports(speedo: Commands, problem: Path, tmp_path: Path) -> None:
    process = speedo.start(*long(problem))
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":10,', 90)
    interrupt(process)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["complete"], result["reason"]) == (False, "stopped by Ctrl-C")
    assert result["iteration"] >= 10
    assert Path(result["model"]).exists()
    assert "test accuracy" in out


def test_a_killed_worker_is_told_and_the_others_go_on(
    speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    process = speedo.start(*long(problem, 400))
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for_line(metrics, '"version":10,', 90)
    victim = actors(speedo, "WorkerActor")[0]
    killed = time.monotonic()
    victim.kill()
    wait_for_line(metrics, '"event":"left"', 10)
    assert time.monotonic() - killed < 10
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    lines = [json.loads(line) for line in metrics.open()]
    left = [line for line in lines if line["event"] == "left"]
    assert [line["cause"] for line in left] == [SILENT]
    merged = {
        (line["worker"], line["ticket"]) for line in lines if line.get("decision") == "merged"
    }
    assert len(merged) == 400


def test_when_every_worker_dies_the_run_ends_with_the_cause(
    speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    process = speedo.start(*long(problem), "--restarts", "0")
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":10,', 90)
    for victim in actors(speedo, "WorkerActor"):
        victim.kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert f"every worker died, the last: {SILENT}" in errors
    assert json.loads((tmp_path / "run" / "result.json").read_text())["iteration"] >= 10


def test_nothing_outlives_a_killed_command(speedo: Commands, problem: Path, tmp_path: Path) -> None:
    process = speedo.start(*long(problem))
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":10,', 90)
    assert len(speedo.left()) > 5
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert speedo.all_gone_within(20), [left.cmdline() for left in speedo.left()]
