"""A team over hosts: its workers sum among themselves, and the model is that of one host."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.commands import Commands
from tests.support.network import Host
from tests.whole_runs.local import model_made_here, weights_in

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240


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


@pytest.mark.parametrize("factors", ["off", "auto"])
def test_workers_of_two_hosts_are_one_team_and_make_the_model_of_one_host(
    speedo: Commands, hosts: list[Host], problem: Path, tmp_path: Path, factors: str
) -> None:
    """To the bit, unless an inner product goes as factors."""
    chief, *others = hosts
    run = speedo.start(
        *master(chief, 2, 50, "--factors", factors), str(problem), inside=chief.inside
    )
    members = [speedo.start(*worker(chief), inside=host.inside) for host in others]
    said, *_ = [ended(process) for process in (run, *members)]
    here = model_made_here(problem, tmp_path / "here", workers=2, max_iter=50, seed=1)
    made = (tmp_path / "run" / "model.caffemodel").read_bytes()
    assert (": factors (" in said) == (factors == "auto"), said
    assert (made == here) == (factors == "off")
    np.testing.assert_allclose(weights_in(made), weights_in(here), rtol=0, atol=1e-4)
    assert max(line["steps"] for line in merged(tmp_path)) > 1, "the team reports stretches"
