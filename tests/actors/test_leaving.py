"""Hosts and masters that are told to end: what was computed is merged, and they are gone in time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speedo.master.plan import MOST_ROUNDS
from speedo.run_dir.checkpoint_file import checkpoints_in
from tests.faults.scripts import EACH_ONCE, trained
from tests.support.commands import Commands, free_port, how_loaded, wait_until
from tests.support.invariants import read_lines
from tests.support.metadata import Metadata, serving
from tests.support.sabotaged_net import BATCH, order, slow_down

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240
GRACE_S = 30.0
SCRIPT = Path(__file__).parents[1] / "run" / "script" / "scripts" / "fit.py"
STEPS = 100_000  # of a turn: many minutes


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with serving() as found:
        yield found


def master(port: int, *options: str) -> tuple[str, ...]:
    return (
        *("master", "--port", str(port), "--max-iter", "10000000", "--test-interval", "0"),
        *("--checkpoint-interval", "0", "--timeout", "300", "--run-dir", "run", *options),
    )


def worker(port: int) -> tuple[str, ...]:
    return ("worker", "--master", f"127.0.0.1:{port}", "--timeout", "300", "--grace", str(GRACE_S))


def lines(folder: Path, event: str) -> list[dict[str, Any]]:
    log = folder / "run" / "metrics.jsonl"
    return [line for line in read_lines(log) if line["event"] == event] if log.exists() else []


def merged(folder: Path) -> list[dict[str, Any]]:
    """Results that have a version: others may be discarded, as of a stretch that missed a member."""
    return [line for line in lines(folder, "result") if line["decision"] == "merged"]


def ends_in_time(process: subprocess.Popen[str], began: float) -> str:
    """What it says on standard error."""
    _, errors = process.communicate(timeout=WAIT_S)
    assert time.monotonic() - began < GRACE_S * how_loaded(), errors
    assert "Traceback" not in errors
    return errors


def test_a_host_that_is_told_hands_in_its_turn_and_one_that_hangs_goes_at_the_second_signal(
    speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    port = free_port()
    options = ("--mode", "async", "--workers", "2", "--local-steps", str(STEPS))
    chief = speedo.start(*master(port, *options, str(problem)))
    hosts = []
    for number in (1, 2):
        hosts.append(speedo.start(*worker(port)))
        wait_until(lambda number=number: len(lines(tmp_path, "joined")) == number, WAIT_S)
    began = time.monotonic()
    hosts[0].send_signal(signal.SIGTERM)
    errors = ends_in_time(hosts[0], began)
    assert hosts[0].returncode == 143, errors
    assert "hand in" in errors
    (left,) = lines(tmp_path, "left")
    assert (left["worker"], left["cause"]) == (0, "its host leaves: SIGTERM")
    (result,) = lines(tmp_path, "result")
    assert (result["worker"], result["decision"]) == (0, "merged")
    assert 0 < result["steps"] < STEPS
    assert result["samples"] == BATCH * result["steps"]

    began = time.monotonic()
    os.kill(lines(tmp_path, "joined")[1]["process"], signal.SIGSTOP)
    hosts[1].send_signal(signal.SIGTERM)
    wait_until(
        lambda: (
            (tmp_path / "run" / "train.log")
            .read_text()
            .count("leaves: SIGTERM; its workers hand in")
            == 2
        )
    )
    wait_until(lambda: time.monotonic() > began + 1.0)  # one that comes at once is the same wish
    hosts[1].send_signal(signal.SIGTERM)
    errors = ends_in_time(hosts[1], began)
    assert hosts[1].returncode == 143, errors
    assert [line["worker"] for line in lines(tmp_path, "left")] == [0, 1]
    assert len(lines(tmp_path, "result")) == 1
    chief.send_signal(signal.SIGTERM)
    ends_in_time(chief, time.monotonic())
    assert chief.returncode == 143


def test_a_host_that_has_a_notice_trains_on_until_another_one_is_there(
    speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    port = free_port()
    chief = speedo.start(*master(port, "--mode", "async", "--workers", "2", str(problem)))
    hosts = [speedo.start(*worker(port), "--leave-after", after) for after in ("600", "1")]
    wait_until(lambda: len(lines(tmp_path, "joined")) == 2, WAIT_S)
    hosts[0].send_signal(signal.SIGTERM)
    hosts.append(speedo.start(*worker(port)))
    wait_until(lambda: len(lines(tmp_path, "joined")) == 3, WAIT_S)
    before = Counter(line["worker"] for line in merged(tmp_path))
    wait_until(lambda: len(Counter(one["worker"] for one in merged(tmp_path)) - before) == 3)
    assert not lines(tmp_path, "left")
    hosts[0].send_signal(signal.SIGTERM)  # a second one is not to be waited for
    errors = ends_in_time(hosts[0], time.monotonic())
    assert hosts[0].returncode == 143, errors
    assert "SIGTERM: leaving in 600 s; the workers train on" in errors
    hosts[1].send_signal(signal.SIGTERM)
    errors = ends_in_time(hosts[1], time.monotonic())
    assert hosts[1].returncode == 143, errors
    assert "hand in" in errors
    assert "refused" not in {line["decision"] for line in lines(tmp_path, "result")}
    chief.send_signal(signal.SIGINT)
    ends_in_time(chief, time.monotonic())


def test_a_team_over_hosts_ends_its_stretch_for_one_that_leaves_and_a_master_leaves_its_run(
    speedo: Commands, problem: Path, tmp_path: Path
) -> None:
    """By `speedo leave`, on its own machine and on the master's; the stretch would take longer than its time."""
    port = free_port()
    slow_down(problem, 2, 0.2)
    options = ("--mode", "sync", "--workers", "2", "--team", "stretch=600")
    chief = speedo.start(*master(port, *options, str(problem)))
    machines = [{"SPEEDO_RUNTIME_DIR": str(tmp_path / name)} for name in ("one", "two")]
    hosts = [speedo.start(*worker(port), environment=machine) for machine in machines]
    wait_until(lambda: merged(tmp_path), WAIT_S)  # of the first round
    before = {line["version"] for line in merged(tmp_path)}
    names = {line["worker"]: line["host"] for line in lines(tmp_path, "joined")}
    began = time.monotonic()
    told = speedo.start("leave", "--in", "30s", environment=machines[0])
    assert told.communicate(timeout=WAIT_S)[0].startswith("process ")
    errors = ends_in_time(hosts[0], began)
    assert hosts[0].returncode == 0, errors
    (left,) = lines(tmp_path, "left")
    first, second = left["worker"], 1 - left["worker"]
    order(problem)  # its stretches may end now
    wait_until(lambda: merged(tmp_path)[-1]["version"] > max(before) + 1, WAIT_S)
    stranger = speedo.start("leave", "nowhere")
    _, errors = stranger.communicate(timeout=WAIT_S)
    assert stranger.returncode == 1
    assert "nowhere is no host of this run" in errors
    assert names[second] in errors
    began = time.monotonic()
    told = speedo.start("leave", names[second], "--in", "30s")
    said = told.communicate(timeout=WAIT_S)[0].strip()
    assert said == f"{names[second]}: leaving, within 30 s"
    errors = ends_in_time(hosts[1], began)
    assert hosts[1].returncode == 0, errors

    cause = "its host leaves: `speedo leave`"
    left = [(line["worker"], line["cause"]) for line in lines(tmp_path, "left")]
    assert left == [(first, cause), (second, cause)]
    handed_in = [line for line in lines(tmp_path, "result") if line["worker"] == first][-1]
    assert handed_in["decision"] == "merged"
    results = merged(tmp_path)
    last = [line["version"] for line in results if line["worker"] == first][-1]
    parts = [line for line in results if line["version"] == last]
    (rounds,) = {line["steps"] for line in parts}
    assert len(parts) == 2
    assert rounds < MOST_ROUNDS
    assert {line["worker"] for line in results if line["version"] > last} == {second}

    chief.send_signal(signal.SIGTERM)
    errors = ends_in_time(chief, time.monotonic())
    assert chief.returncode == 143, errors
    assert "stopped by SIGTERM; continue with --resume" in errors
    (kept,) = lines(tmp_path, "checkpoint")
    assert kept["version"] == results[-1]["version"]
    assert checkpoints_in(tmp_path / "run" / "checkpoints")
    assert (tmp_path / "run" / "model.caffemodel").exists()


def test_a_script_whose_cloud_gives_notice_gives_back_the_records_that_it_has_not_trained(
    speedo: Commands, tmp_path: Path, metadata: Metadata
) -> None:
    """A turn would take all that there are; each is trained once an epoch."""
    port = free_port()
    options = ("--own", "--mode", "async", "--workers", "2", "--local-steps", "1000")
    chief = speedo.start(
        *("master", "--port", str(port), "--timeout", "300", "--run-dir", "run", *options)
    )
    hosts = []
    for number in (1, 2):
        script = ("--", "python", str(SCRIPT), "none", "0.2")
        notice = ("--leave-on", f"{metadata.address}/notice/{number}")
        hosts.append(speedo.start(*worker(port), *notice, *script))
        wait_until(lambda number=number: len(lines(tmp_path, "joined")) == number, WAIT_S)
    began = time.monotonic()
    metadata.pages["/notice/1"] = "stop"
    ends_in_time(hosts[0], began)
    assert hosts[0].returncode == 0
    for process in (hosts[1], chief):
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, errors
    cause = f"its host leaves: a notice of {metadata.address}/notice/1"
    assert lines(tmp_path, "left")[0]["cause"] == cause
    results = lines(tmp_path, "result")
    assert [line["decision"] for line in results if line["worker"] == 0] == ["merged"]
    assert trained(results) == EACH_ONCE
