"""The solver's own update on servers is that of the master, to the bit; it goes on from a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.exchange.vector import Vector
from speedo.run_dir.checkpoint_file import Checkpoint, latest
from speedo.run_dir.directory import CHECKPOINTS, METRICS
from speedo.storage.memory_store import MemoryStore
from tests.support.nets import net_text, write_data, write_solver
from tests.support.solvers import TYPES
from tests.support.update_trials import NET
from tests.whole_runs.local import train_here

pytestmark = pytest.mark.caffe
ITERATIONS = 30
BOUND = 1e-6


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


def solver(data: Path, kind: str, iterations: int = ITERATIONS, **fields: Any) -> Path:
    return write_solver(
        data, net_text(NET), max_iter=iterations, test_iter=None, test_interval=None,
        lr_policy='"inv"', gamma=0.01, power=0.75, **{"weight_decay": 0.01, **TYPES[kind], **fields},
    )  # fmt: skip


def train(text: Path, run: Path, servers: int, **options: Any) -> tuple[Vector, Vector]:
    """The center before and after."""
    chosen = {"server_gradient": True, "workers": 1, "servers": servers, **options}
    result, before, after = train_here(text, MemoryStore(), run, **chosen)
    assert result.complete
    return before, after


@pytest.mark.parametrize("decay", ["L1", "L2"])
@pytest.mark.parametrize("kind", TYPES)
def test_one_to_three_servers_make_the_update_of_the_master(
    data: Path, tmp_path: Path, kind: str, decay: str
) -> None:
    text = solver(data, kind, regularization_type=f'"{decay}"', clip_gradients=0.5)
    before, alone = train(text, tmp_path / "run0", 0)
    served = [train(text, tmp_path / f"run{count}", count)[1] for count in (1, 2, 3)]
    assert len({center.tobytes() for center in (alone, *served)}) == 1
    _, free = train(solver(data, kind, regularization_type=f'"{decay}"'), tmp_path / "free", 1)
    assert not np.array_equal(free, served[0])  # some gradients were clipped
    assert np.linalg.norm(alone - before) > 1e-3 * np.linalg.norm(alone)


def checkpoint(run: Path) -> Checkpoint:
    return latest(run / CHECKPOINTS)[1]


@pytest.mark.parametrize(("first", "then"), [(2, 3), (2, 0), (0, 2)])
def test_a_checkpoint_has_the_history_for_any_number_of_servers(
    data: Path, tmp_path: Path, first: int, then: int
) -> None:
    """As the workers begin with the first records again, the history shows in what the same gradients do."""
    train(solver(data, "Adam", 10), tmp_path / "first", first, checkpointed=True)
    kept = checkpoint(tmp_path / "first")
    assert kept.master_history
    text = solver(data, "Adam", 30)
    found = [
        train(text, tmp_path / f"then{servers}", servers, checkpoint=kept)[1]
        for servers in (1, then)
    ]
    assert np.linalg.norm(found[0] - found[1]) <= BOUND * np.linalg.norm(found[0])
    without = Checkpoint(kept.counters, kept.center)
    told: list[str] = []
    _, other = train(text, tmp_path / "without", 1, checkpoint=without, notices=told)
    assert told == [
        "warning: the checkpoint has no history of the update by gradients: it begins at 0"
    ]
    assert np.linalg.norm(found[0] - other) > 100 * BOUND * np.linalg.norm(other)


@pytest.mark.parametrize("gradient", [False, True])
def test_the_log_tells_how_long_servers_took(data: Path, tmp_path: Path, gradient: bool) -> None:
    train(solver(data, "SGD", 10), tmp_path / "run", 2, server_gradient=gradient, team="off")
    lines = [json.loads(line) for line in (tmp_path / "run" / METRICS).open()]
    timings = [line["timings"] for line in lines if line.get("decision") == "merged"]
    assert len(timings) == 10
    for one in timings[1:]:  # the first merge is not confirmed when its line is written
        masters = [one[name] for name in ("receive", "merge", "publish_center")]
        assert all(0 < seconds < one["compute"] + 1 for seconds in masters)
