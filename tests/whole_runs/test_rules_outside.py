"""A user's rule in real runs: its state is in the checkpoint, for the master and for any number of servers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from speedo.engines.solver import SolverOverrides
from speedo.exchange.vector import Vector
from speedo.run_dir.checkpoint_file import Checkpoint, latest
from speedo.run_dir.directory import CHECKPOINTS
from speedo.sgd_modes.rules import State
from speedo.storage.memory_store import MemoryStore
from tests.support.outside import outside as outside
from tests.whole_runs.local import train_here

pytestmark = pytest.mark.caffe
REPOSITORY = Path(__file__).parents[2]


def train(
    solver: Path, place: Path, rule: str, until: int, servers: int, former: Checkpoint | None = None
) -> tuple[Checkpoint, Vector]:
    sys.modules.pop("saboteur", None)  # a layer must come from this solver's folder
    _, _, center = train_here(
        solver,
        MemoryStore(),
        place,
        overrides=SolverOverrides(max_iter=until, seed=3, test_interval=None),
        mode="sync",
        team="off",
        rule=rule,
        heavy=0.8,
        workers=2,
        servers=str(servers),
        checkpointed=True,
        checkpoint=former,
    )
    return latest(place / CHECKPOINTS)[1], center


@pytest.mark.parametrize(("first", "then"), [(0, 2), (2, 0)])
def test_the_state_of_a_rule_is_in_the_checkpoint_for_master_and_servers(
    problem: Path, tmp_path: Path, outside: str, first: int, then: int
) -> None:
    rule = f"{outside}:Heavy"
    kept, center = train(problem, tmp_path / "first", rule, 6, first)
    state = State.unpack(kept.rule_state, center.size)
    assert state.numbers == {"merges": 6.0}
    assert np.abs(state.vectors["momentum"]).max() > 0
    again = latest(tmp_path / "first" / CHECKPOINTS)[1]  # a run goes on in its center's memory
    bare = Checkpoint(
        kept.counters, kept.center.copy(), workers=kept.workers, histories=kept.histories
    )
    _, here = train(problem, tmp_path / "here", rule, 12, first, kept)
    resumed, there = train(problem, tmp_path / "there", rule, 12, then, again)
    assert here.tobytes() == there.tobytes()
    assert State.unpack(resumed.rule_state, center.size).numbers == {"merges": 12.0}
    _, without = train(problem, tmp_path / "without", rule, 12, then, bare)
    assert np.abs(without - there).max() > 1e-4


def test_a_users_rule_reaches_the_servers_of_a_run_and_goes_on_when_it_is_resumed(
    problem: Path, tmp_path: Path, outside: str
) -> None:
    def speedo(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "speedo", "train", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    rule = ("--mode", "sync", "--team", "off", "--rule", f"{outside}:Heavy,heavy=0.3")
    speedo(str(problem), *rule, "--servers", "2", "--max-iter", "8", "--run-dir", "run")
    told = speedo("--resume", "run", "--max-iter", "16")
    assert f"mode sync, rule {outside}:Heavy, 2 workers" in told
    kept = latest(tmp_path / "run" / CHECKPOINTS)[1]
    assert State.unpack(kept.rule_state, kept.center.size).numbers == {"merges": 16.0}
