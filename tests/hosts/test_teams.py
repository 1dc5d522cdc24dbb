"""A team over hosts: its workers sum among themselves, and the model is that of one host."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.commands import Commands, wait_for_line
from tests.support.network import Host
from tests.whole_runs.local import model_made_here, weights_in

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240
MODEL_BYTES = 4 * 310_504


def master(host: Host, workers: int, iterations: int, *options: str) -> tuple[str, ...]:
    return (
        "master", "--host", host.address, "--mode", "sync", "--workers", str(workers), "--max-iter",
        str(iterations), "--test-interval", "0", "--timeout", "300", "--seed", "1", "--run-dir", "run", *options,
    )  # fmt: skip


def worker(chief: Host, *options: str) -> tuple[str, ...]:
    return ("worker", "--master", chief.address, "--timeout", "300", *options)


def ended(process: subprocess.Popen[str]) -> str:
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    return errors


def merged(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").open()]
    return [line for line in lines if line.get("decision") == "merged"]


@pytest.mark.parametrize("factors", [pytest.param("off", marks=pytest.mark.matrix), "auto"])
def test_workers_of_two_hosts_are_one_team_and_make_the_model_of_one_host(
    speedo: Commands, hosts: list[Host], problem: Path, tmp_path: Path, factors: str
) -> None:
    """To the bit, unless an inner product goes as factors."""
    chief, *others = hosts
    run = speedo.start(
        *master(chief, 2, 50, "--team", f"factors={factors}"), str(problem), inside=chief.inside
    )
    members = [speedo.start(*worker(chief), inside=host.inside) for host in others]
    said, *_ = [ended(process) for process in (run, *members)]
    here = model_made_here(problem, tmp_path / "here", workers=2, max_iter=50, seed=1)
    made = (tmp_path / "run" / "model.caffemodel").read_bytes()
    assert (": factors (" in said) == (factors == "auto"), said
    assert (made == here) == (factors == "off")
    np.testing.assert_allclose(weights_in(made), weights_in(here), rtol=0, atol=1e-4)
    assert max(line["steps"] for line in merged(tmp_path)) > 1, "the team reports stretches"


def sent(host: Host) -> int:
    """Bytes that have left this host."""
    told = subprocess.run(
        [*host.inside, "cat", "/proc/net/dev"], capture_output=True, text=True, check=True
    ).stdout
    return sum(int(line.split()[9]) for line in told.splitlines()[2:] if "lo:" not in line)


@pytest.mark.parametrize(
    "master_trains", [True, pytest.param(False, marks=pytest.mark.matrix)], ids=["near", "far"]
)
def test_the_links_carry_the_sums_of_the_rounds_and_hardly_more(
    speedo: Commands, hosts: list[Host], problem: Path, tmp_path: Path, master_trains: bool
) -> None:
    """With a leader near the master; without, its report is a small part of what its link carries."""
    chief, *others = hosts
    training = hosts if master_trains else others
    count, rounds = len(training), 600
    run = speedo.start(
        *master(chief, count, rounds, "--team", "factors=off"), str(problem), inside=chief.inside
    )
    members = [speedo.start(*worker(chief), inside=host.inside) for host in training]
    for process in (run, *members):
        ended(process)
    ring = rounds * MODEL_BYTES * 2 * (count - 1) / count
    parts = [sent(host) / ring for host in training]
    assert all(1.0 < part < 1.04 for part in parts), parts


@pytest.mark.matrix
def test_a_team_over_hosts_forms_again_under_a_master_that_was_killed_and_resumed(
    speedo: Commands, hosts: list[Host], problem: Path, tmp_path: Path
) -> None:
    chief, *others = hosts
    options = ("--checkpoint-interval", "1")
    first = speedo.start(*master(chief, 2, 4000, *options), str(problem), inside=chief.inside)
    members = [speedo.start(*worker(chief), inside=host.inside) for host in others]
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"event":"checkpoint"', 120, first)
    first.kill()
    first.wait()
    resumed = speedo.start(
        *("master", "--resume", "run", "--host", chief.address, "--timeout", "300"),
        inside=chief.inside,
    )
    for process in (resumed, *members):
        ended(process)
    lines = merged(tmp_path)
    assert lines[-1]["iteration"] == 4000
    assert len(lines[-3]["losses"]) > 1, "stretches of several rounds, after the resumption, too"
