"""Servers of the center on hosts of their own: the master carries no arrays, and a host may serve without training."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.commands import Commands, interrupt, wait_for_line
from tests.support.network import Host
from tests.whole_runs.local import model_made_here

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240
MODEL_BYTES = 4 * 310_504


def master(host: Host, workers: int, *options: str, iterations: int = 40) -> tuple[str, ...]:
    return (
        "master", "--host", host.address, "--workers", str(workers), "--max-iter", str(iterations),
        "--timeout", "300", "--seed", "1", "--run-dir", "run", *options,
    )  # fmt: skip


def join(kind: str, chief: Host, *options: str) -> tuple[str, ...]:
    return (kind, "--master", chief.address, "--timeout", "300", *options)


def test_every_host_serves_and_the_model_is_the_same_to_the_bit(
    speedo: Commands, hosts: list[Host], tested_problem: Path, tmp_path: Path
) -> None:
    chief, *others = hosts
    run = speedo.start(
        *master(chief, 2, "--servers", "auto", "--test-interval", "20"), str(tested_problem), inside=chief.inside
    )  # fmt: skip
    members = [speedo.start(*join("worker", chief), inside=host.inside) for host in others]
    for process in (run, *members):
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, errors
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["complete"]
    here = model_made_here(
        tested_problem, tmp_path / "here", workers=2, max_iter=40, seed=1, team="off"
    )
    assert (tmp_path / "run" / "model.caffemodel").read_bytes() == here


def test_a_host_may_serve_without_training_and_sends_a_version_once_for_all_workers_of_another(
    speedo: Commands, hosts: list[Host], problem: Path, tmp_path: Path
) -> None:
    chief, serving, training = hosts
    run = speedo.start(
        *master(chief, 2, "--servers", "1", "--team", "off", "--redis-tls", "--test-interval", "0"),
        str(problem), inside=chief.inside,
    )  # fmt: skip
    server = speedo.start(*join("server", chief), inside=serving.inside)
    assert server.stderr is not None
    for line in server.stderr:
        if "joined the master" in line:
            assert line.endswith("to serve\n")
            break
    before = sent(serving)
    worker = speedo.start(*join("worker", chief, "--workers", "2"), inside=training.inside)
    for process in (run, server, worker):
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, errors
    assert json.loads((tmp_path / "run" / "result.json").read_text())["iteration"] == 40
    centers = (sent(serving) - before) / MODEL_BYTES
    assert 40 < centers < 60, centers  # 40 rounds of two workers; the first center, and the last


def kill_all(host: Host) -> None:
    """As a power cut: no process of this host says that it ends. Shells that remove its files are left to do so."""
    for process in host.processes():
        with suppress(ProcessLookupError, FileNotFoundError):
            if Path("/proc", str(process), "comm").read_text() != "sh\n":
                os.kill(process, signal.SIGKILL)


def sent(host: Host) -> int:
    """Bytes that have left this host."""
    told = subprocess.run(
        [*host.inside, "cat", "/proc/net/dev"], capture_output=True, text=True, check=True
    ).stdout
    return sum(int(line.split()[9]) for line in told.splitlines()[2:] if "lo:" not in line)


def test_another_host_takes_the_range_of_one_that_is_gone_for_good(
    speedo: Commands, hosts: list[Host], problem: Path, tmp_path: Path
) -> None:
    """All begin again from the newest center that the master has."""
    chief, *others = hosts
    run = speedo.start(*endless(chief), str(problem), inside=chief.inside)
    members = [speedo.start(*join("worker", chief), inside=host.inside) for host in others]
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":100,', 90)
    kill_all(others[0])
    goes_on_with_the_range_elsewhere(tmp_path / "run")
    errors = stopped(run)
    assert "has lost its range with its store: the center is reset to version" in errors
    _, errors = members[1].communicate(timeout=WAIT_S)
    assert members[1].returncode == 0, errors


@pytest.mark.matrix
def test_a_host_that_leaves_in_order_hands_its_range_over(
    speedo: Commands, hosts: list[Host], problem: Path, tmp_path: Path
) -> None:
    """No checkpoint has it: one is made at the end alone."""
    chief, *others = hosts
    run = speedo.start(*endless(chief), str(problem), inside=chief.inside)
    members = [speedo.start(*join("worker", chief), inside=host.inside) for host in others]
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":250,', 90)
    members[0].terminate()
    goes_on_with_the_range_elsewhere(tmp_path / "run")
    errors = stopped(run)
    told = re.search(r"is reset to version (\d+), and (\d+) merges are lost", errors)
    assert told is not None, errors
    assert int(told[1]) >= 250
    assert int(told[2]) < 200
    assert members[0].wait(WAIT_S) == 143
    _, errors = members[1].communicate(timeout=WAIT_S)
    assert members[1].returncode == 0, errors


def endless(chief: Host) -> tuple[str, ...]:
    """Without checkpoints but the one at the end."""
    options = ("--servers", "auto", "--mode", "async", "--test-interval", "0")
    return master(chief, 2, *options, "--checkpoint-interval", "0", iterations=1_000_000)


def goes_on_with_the_range_elsewhere(folder: Path) -> None:
    """Wait until another host has the range and 100 versions more are merged."""
    back = "is back, with version "
    wait_for_line(folder / "train.log", back, 90)
    version = int((folder / "train.log").read_text().partition(back)[2].split()[0])
    wait_for_line(folder / "metrics.jsonl", f'"version":{version + 100},', 90)


def stopped(run: subprocess.Popen[str]) -> str:
    """End the run as Ctrl-C does, and see that it ends well with its model; its standard error."""
    interrupt(run)
    _, errors = run.communicate(timeout=WAIT_S)
    assert run.returncode == 130, errors
    assert "Traceback" not in errors
    return errors
