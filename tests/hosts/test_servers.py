"""Servers of the center on hosts of their own: the master carries no arrays, and a host may serve without training."""

from __future__ import annotations

import json
import re
import subprocess
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
        *master(chief, 2, "--servers", "1", "--team", "off", "--redis", "tls=yes", "--test-interval", "0"),
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


def sent(host: Host) -> int:
    """Bytes that have left this host."""
    told = subprocess.run(
        [*host.inside, "cat", "/proc/net/dev"], capture_output=True, text=True, check=True
    ).stdout
    return sum(int(line.split()[9]) for line in told.splitlines()[2:] if "lo:" not in line)


def test_a_run_begins_again_without_the_host_of_a_server_that_has_left(
    speedo: Commands, hosts: list[Host], problem: Path, tmp_path: Path
) -> None:
    """A checkpoint is made for it, the only one; the host that is left has both ranges then."""
    chief, *others = hosts
    options = ("--servers", "2", "--mode", "async", "--test-interval", "0", "--checkpoint-interval")
    run = speedo.start(
        *master(chief, 2, *options, "0", iterations=1_000_000), str(problem), inside=chief.inside
    )
    members = [speedo.start(*join("worker", chief), inside=host.inside) for host in others]
    lines = tmp_path / "run" / "metrics.jsonl"
    wait_for_line(lines, '"version":250,', 90)
    members[0].terminate()
    assert members[0].wait(WAIT_S) == 143
    wait_for_line(lines, '"event":"resumed"', 120)
    resumed = json.loads(
        next(line for line in lines.read_text().splitlines() if '"event":"resumed"' in line)
    )
    assert resumed["version"] >= 250
    wait_for_line(lines, f'"version":{resumed["version"] + 300},', 120)
    interrupt(run)
    _, errors = run.communicate(timeout=WAIT_S)
    assert run.returncode == 130, errors
    assert "Traceback" not in errors
    told = re.search(
        r"server \d at .* is lost: .*: the run begins again from the newest checkpoint", errors
    )
    assert told is not None, errors
    _, errors = members[1].communicate(timeout=WAIT_S)
    assert members[1].returncode == 0, errors
