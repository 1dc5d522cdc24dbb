"""Servers of the center on hosts of their own: the master carries no arrays, and a host may serve without training."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.commands import Commands, wait_for_line
from tests.support.network import Host

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 120


def master(host: Host, workers: int, *options: str, iterations: int = 40) -> tuple[str, ...]:
    return (
        "master", "--host", host.address, "--workers", str(workers), "--max-iter", str(iterations),
        "--timeout", "60", "--seed", "1", "--run-dir", "run", *options,
    )  # fmt: skip


def join(kind: str, chief: Host, *options: str) -> tuple[str, ...]:
    return (kind, "--master", chief.address, "--timeout", "60", *options)


def test_every_host_serves_and_the_model_is_the_same_to_the_bit(
    speedo: Commands, hosts: list[Host], problem: Path, tmp_path: Path
) -> None:
    chief, *others = hosts
    run = speedo.start(
        *master(chief, 2, "--servers", "auto", "--test-interval", "20"), str(problem), inside=chief.inside
    )  # fmt: skip
    members = [speedo.start(*join("worker", chief), inside=host.inside) for host in others]
    for process in (run, *members):
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, errors
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["complete"]
    here = speedo.start(
        "train", str(problem), "--workers", "2", "--max-iter", "40", "--test-interval", "20", "--seed", "1",
        "--run-dir", "here",
    )  # fmt: skip
    _, errors = here.communicate(timeout=WAIT_S)
    assert here.returncode == 0, errors
    models = [(tmp_path / one / "model.caffemodel").read_bytes() for one in ("run", "here")]
    assert models[0] == models[1]


def test_a_host_may_serve_without_training(
    speedo: Commands, hosts: list[Host], problem: Path, tmp_path: Path
) -> None:
    chief, serving, training = hosts
    run = speedo.start(
        *master(chief, 1, "--servers", "2", "--mode", "async", "--redis-tls"), str(problem), inside=chief.inside
    )  # fmt: skip
    server = speedo.start(*join("server", chief), inside=serving.inside)
    assert server.stderr is not None
    for line in server.stderr:
        if "joined the master" in line:
            assert line.endswith("to serve\n")
            break
    worker = speedo.start(*join("worker", chief), inside=training.inside)
    for process in (run, server, worker):
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, errors
    assert json.loads((tmp_path / "run" / "result.json").read_text())["iteration"] == 40


def test_another_host_takes_the_range_of_one_that_is_gone_for_good(
    speedo: Commands, hosts: list[Host], problem: Path, tmp_path: Path
) -> None:
    chief, *others = hosts
    options = ("--servers", "auto", "--mode", "async", "--checkpoint-interval", "1")
    run = speedo.start(
        *master(chief, 2, *options, iterations=1500), str(problem), inside=chief.inside
    )
    members = [speedo.start(*join("worker", chief), inside=host.inside) for host in others]
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"checkpoint"', 90)
    members[0].kill()
    _, errors = run.communicate(timeout=WAIT_S)
    assert run.returncode == 0, errors
    assert "has lost its range with its store: the center goes back" in errors
    assert json.loads((tmp_path / "run" / "result.json").read_text())["iteration"] == 1500
    _, errors = members[1].communicate(timeout=WAIT_S)
    assert members[1].returncode == 0, errors


def test_a_host_that_leaves_in_order_hands_its_range_over(
    speedo: Commands, hosts: list[Host], problem: Path, tmp_path: Path
) -> None:
    """No checkpoint has it: one is made at the end alone."""
    chief, *others = hosts
    options = ("--servers", "auto", "--mode", "async", "--checkpoint-interval", "0")
    run = speedo.start(
        *master(chief, 2, *options, iterations=1500), str(problem), inside=chief.inside
    )
    members = [speedo.start(*join("worker", chief), inside=host.inside) for host in others]
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":300,', 90)
    members[0].terminate()
    _, errors = run.communicate(timeout=WAIT_S)
    assert run.returncode == 0, errors
    told = re.search(
        r"goes back to what it was at version (\d+), and (\d+) merges are lost", errors
    )
    assert told is not None
    assert int(told[1]) >= 300
    assert int(told[2]) < 200
    assert members[0].wait(WAIT_S) == 143
    _, errors = members[1].communicate(timeout=WAIT_S)
    assert members[1].returncode == 0, errors
