"""Hosts and masters that are told to end: what was computed is merged, and they are gone in time."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from speedo.master.turn_book import MOST_ROUNDS
from speedo.run_dir.checkpoint_file import checkpoints_in
from tests.support.commands import Commands, free_port, how_loaded, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240
GRACE_S = 30.0
STEPS = 20_000  # of a turn: many minutes


def master(port: int, *options: str) -> tuple[str, ...]:
    return (
        *("master", "--port", str(port), "--max-iter", "10000000", "--test-interval", "0"),
        *("--checkpoint-interval", "0", "--timeout", "300", "--run-dir", "run", *options),
    )


def worker(port: int) -> tuple[str, ...]:
    return ("worker", "--master", f"127.0.0.1:{port}", "--timeout", "300", "--grace", str(GRACE_S))


def lines(folder: Path, event: str) -> list[dict[str, Any]]:
    log = folder / "run" / "metrics.jsonl"
    found = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [line for line in found if line["event"] == event]


def ends_in_time(process: subprocess.Popen[str], began: float) -> str:
    """What it says on standard error."""
    _, errors = process.communicate(timeout=WAIT_S)
    assert time.monotonic() - began < GRACE_S * how_loaded(), errors
    assert "Traceback" not in errors
    return errors


def test_a_host_that_is_told_hands_in_its_turn_and_a_master_its_run(
    speedo: Commands, tmp_path: Path
) -> None:
    """By SIGTERM, and by `speedo leave` on the master's machine."""
    port = free_port()
    options = ("--mode", "async", "--workers", "3", "--local-steps", str(STEPS))
    chief = speedo.start(*master(port, *options))
    hosts: dict[str, subprocess.Popen[str]] = {}
    for number in range(1, 4):
        started = speedo.start(*worker(port))
        wait_until(lambda number=number: len(lines(tmp_path, "joined")) == number, WAIT_S)
        hosts[lines(tmp_path, "joined")[-1]["host"]] = started
    names = list(hosts)

    began = time.monotonic()
    hosts[names[0]].send_signal(signal.SIGTERM)
    errors = ends_in_time(hosts[names[0]], began)
    assert hosts[names[0]].returncode == 143, errors
    assert "hand in" in errors

    began = time.monotonic()
    told = speedo.start("leave", names[1], "--in", "30s")
    assert told.communicate(timeout=WAIT_S)[0].strip() == f"{names[1]}: leaving, within 30 s"
    errors = ends_in_time(hosts[names[1]], began)
    assert hosts[names[1]].returncode == 0, errors

    left = [(line["worker"], line["cause"]) for line in lines(tmp_path, "left")]
    causes = ["its host leaves: SIGTERM", "its host leaves: `speedo leave`"]
    assert left == [(0, causes[0]), (1, causes[1])]
    results = lines(tmp_path, "result")
    assert [(line["worker"], line["decision"]) for line in results] == [
        (0, "merged"),
        (1, "merged"),
    ]
    assert all(0 < line["steps"] < STEPS for line in results)
    assert all(line["samples"] == 64 * line["steps"] for line in results)

    stranger = speedo.start("leave", "nowhere")
    _, errors = stranger.communicate(timeout=WAIT_S)
    assert stranger.returncode == 1
    assert "nowhere is no host of this run" in errors
    assert names[2] in errors

    began = time.monotonic()
    chief.send_signal(signal.SIGTERM)
    errors = ends_in_time(chief, began)
    assert chief.returncode == 143, errors
    assert "stopped by SIGTERM; continue with --resume" in errors
    (kept,) = lines(tmp_path, "checkpoint")
    assert kept["version"] == 2
    assert checkpoints_in(tmp_path / "run" / "checkpoints")
    assert (tmp_path / "run" / "model.caffemodel").exists()
    ends_in_time(hosts[names[2]], began)
    assert hosts[names[2]].returncode == 0


def test_a_team_over_hosts_ends_its_stretch_for_one_that_leaves(
    speedo: Commands, tmp_path: Path
) -> None:
    """By `speedo leave` on its own machine; the stretch would take longer than its time."""
    port = free_port()
    chief = speedo.start(*master(port, "--mode", "sync", "--workers", "2", "--stretch", "600"))
    machines = [{"SPEEDO_RUNTIME_DIR": str(tmp_path / name)} for name in ("one", "two")]
    hosts = [speedo.start(*worker(port), environment=machine) for machine in machines]
    wait_until(lambda: lines(tmp_path, "result"), WAIT_S)  # of the first round
    before = {line["version"] for line in lines(tmp_path, "result")}
    began = time.monotonic()
    told = speedo.start("leave", "--in", "30s", environment=machines[0])
    assert told.communicate(timeout=WAIT_S)[0].startswith("process ")
    errors = ends_in_time(hosts[0], began)
    assert hosts[0].returncode == 0, errors
    (left,) = lines(tmp_path, "left")
    assert left["cause"] == "its host leaves: `speedo leave`"
    wait_until(lambda: lines(tmp_path, "result")[-1]["version"] > max(before) + 1, WAIT_S)
    results = lines(tmp_path, "result")
    assert {line["decision"] for line in results} == {"merged"}
    last = [line["version"] for line in results if line["worker"] == left["worker"]][-1]
    parts = [line for line in results if line["version"] == last]
    assert len(parts) == 2
    (rounds,) = {line["steps"] for line in parts}
    assert rounds < MOST_ROUNDS
    assert {line["worker"] for line in results if line["version"] > last} == {1 - left["worker"]}
    hosts[1].send_signal(signal.SIGTERM)
    hosts[1].send_signal(signal.SIGTERM)
    chief.send_signal(signal.SIGTERM)
    for process in (hosts[1], chief):
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 143
