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

pytestmark = [
    pytest.mark.ray,
    pytest.mark.redis,
    pytest.mark.caffe,
    pytest.mark.usefixtures("forked_python"),
]
PROGRAM = """
import os, sys, json
import ray
before = dict(os.environ)
import speedo
results = [speedo.train(sys.argv[1], max_iter=4, test_interval=0, run_dir="run1")]
after = dict(os.environ)
ray.init(address="local", num_cpus=1, include_dashboard=False)
mine = ray.put("mine")
results.append(speedo.train(sys.argv[1], max_iter=4, test_interval=0, run_dir="run2"))
try:
    speedo.train(sys.argv[1], max_iter=4, test_interval=0, run_dir="run2")
except speedo.errors.ConfigError as error:
    said = str(error)
kept = ray.get(mine)
ray.shutdown()
changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
print(json.dumps([[one.iteration for one in results], kept, said, sorted(changed)]))
"""


def test_a_program_that_uses_ray_itself_trains_beside_it(speedo: Commands, tmp_path: Path) -> None:
    """Ray reads its settings when it is imported, and has one cluster at a time: the run has a process of its own."""
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
    iterations, kept, said, changed = json.loads(done.stdout.splitlines()[-1])
    assert iterations == [4, 4]
    assert kept == "mine"
    assert "run2" in said
    assert changed == []
