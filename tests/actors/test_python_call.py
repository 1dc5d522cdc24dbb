"""`speedo.train` in a program of somebody's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import MARK, Commands
from tests.support.sabotaged_net import write_problem

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
PROGRAM = """
import os, sys, json
import ray
from ray._raylet import get_authentication_mode
before = int(get_authentication_mode())
import speedo
results = [speedo.train(sys.argv[1], max_iter=4, test_interval=0, run_dir=f"run{n}") for n in (1, 2)]
ray.init(address="local", num_cpus=1, include_dashboard=False)
try:
    speedo.train(sys.argv[1], max_iter=4, run_dir="run3")
except speedo.errors.ClusterError as error:
    said = str(error)
ray.shutdown()
print(json.dumps([before, [one.iteration for one in results], said]))
"""


def test_a_program_that_has_imported_ray_trains_twice(speedo: Commands, tmp_path: Path) -> None:
    """Ray reads its settings when it is imported, and would serve without a token."""
    solver = write_problem(tmp_path / "problem", tested=False)
    environment = {name: value for name, value in os.environ.items() if "RAY_" not in name}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(solver)],
        cwd=tmp_path,
        env={**environment, MARK: speedo.mark},
        capture_output=True,
        text=True,
        timeout=280,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
    before, iterations, said = json.loads(done.stdout.splitlines()[-1])
    assert before == 0, "it was imported with the token on: nothing is tried"
    assert iterations == [4, 4]
    assert "ray.shutdown()" in said
