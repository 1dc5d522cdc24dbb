"""A run that is killed and resumed is the run that was not; one that begins at Caffe's snapshot is Caffe's own."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.engines.caffe_import import load_caffe
from speedo.engines.parameters import Parameters
from speedo.engines.solver import SolverOverrides
from speedo.exchange.transfer import take_history
from speedo.exchange.vector import Vector
from speedo.run_dir.checkpoint_file import Counters, checkpoints_in, read_checkpoint
from speedo.run_dir.resume import Resumed
from speedo.storage.memory_store import MemoryStore
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from tests.support.commands import commands
from tests.support.nets import (
    SMOOTH,
    net_text,
    records,
    relative_difference,
    write_lmdb,
    write_solver,
)
from tests.whole_runs.local import train_here

pytestmark = [pytest.mark.caffe, pytest.mark.redis]
BATCH = 16


def smooth_solver(folder: Path, **fields: object) -> Path:
    images, labels = records(240, 5)
    write_lmdb(folder / "shards", images, labels)
    body = net_text(SMOOTH, batch=BATCH, train="shards", test="shards")
    return write_solver(folder, body, **{"test_iter": None, "test_interval": None, **fields})


def weights(model: Path, solver: Path) -> Vector:
    """A `.caffemodel` as a flat vector, read by Caffe itself into the solver's train net."""
    caffe = load_caffe()
    caffe.set_mode_cpu()
    caffe.set_solver_count(1)
    caffe.set_solver_rank(0)
    with contextlib.chdir(solver.parent):
        net = caffe.get_solver(str(solver)).net
        net.copy_from(str(model))
    parameters = Parameters(net)
    vector = parameters.layout.zeros()
    parameters.read(vector)
    return vector


# Where the master is killed: before a merge, after it, and once it is published.
POINTS = ("master-merging", "master-merged", "master-published")


def events(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param('"SGD"', marks=pytest.mark.matrix), '"Adam"'])
def test_one_worker_in_sync_is_the_same_to_the_bit_after_kill_and_resume(
    tmp_path: Path, kind: str
) -> None:
    """Momentum, Adam's moments, the step policy's rate and the position in the data all matter here.

    The unbroken run is without Ray, which changes no bit (test_sync_equals_caffe.py).
    """
    fields = {"type": kind, "base_lr": 0.002, "lr_policy": '"step"', "stepsize": 700, "gamma": 0.5}
    solver = smooth_solver(tmp_path, max_iter=2000, **fields)
    options = [
        "train",
        str(solver),
        "--workers",
        "1",
        "--checkpoint-interval",
        "0.3",
    ]
    with PrivateRedis() as server:
        store = RedisStore(server.url)
        by_master = {"server_gradient": True} if kind == '"Adam"' else {}  # as `train` has it
        _, _, whole = train_here(solver, store, tmp_path / "whole", workers=1, **by_master)
    with commands(tmp_path) as speedo:
        killed_in_the_second = {"SPEEDO_FAILPOINT": "master-checkpointing@4"}  # two parts in each
        once = ("--restarts", "master_restarts=0")
        process = speedo.start(
            *options, *once, "--run-dir", "killed", environment=killed_in_the_second
        )
        assert process.wait(120) == 1
        kept = read_checkpoint(checkpoints_in(tmp_path / "killed" / "checkpoints")[0]).counters
        process = speedo.start("train", "--resume", "killed")
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        killed = {
            "SPEEDO_FAILPOINT": " ".join(f"{point}@300" for point in POINTS),
            "SPEEDO_FAILPOINT_DONE": str(tmp_path / "done"),
        }
        process = speedo.start(*options, "--run-dir", "taken-over", environment=killed)
        _, told = process.communicate(timeout=120)
        assert process.returncode == 0, told
    taken_over = weights(tmp_path / "taken-over" / "model.caffemodel", solver)
    np.testing.assert_array_equal(whole, taken_over)
    masters = [one["epoch"] for one in events(tmp_path / "taken-over") if one["event"] == "resumed"]
    assert masters == [1, 2, 3]
    joined = [one["process"] for one in events(tmp_path / "taken-over") if one["event"] == "joined"]
    assert len(set(joined)) == 1, "the worker's process began anew"
    assert 0 < kept.iteration < 2000
    assert f"resumed at iteration {kept.iteration} (version {kept.version})" in errors
    assert "solver history of 1 of 1 workers" in errors
    resumed = weights(tmp_path / "killed" / "model.caffemodel", solver)
    np.testing.assert_array_equal(whole, resumed)

    log = events(tmp_path / "killed")
    start = next(n for n, one in enumerate(log) if one["event"] == "resumed")
    assert (log[start]["epoch"], log[start]["version"]) == (1, kept.version)
    merged = [one["version"] for one in log[start:] if one.get("decision") == "merged"]
    assert merged == list(range(kept.version + 1, 2001))
    tickets = [one["ticket"] for one in log if one["event"] == "result"]
    assert len(set(tickets)) == len(tickets)
    times = [float(str(one["time"])) for one in log]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (1, {}),
        (2, {}),
        (1, {"local_steps": 10}),
        pytest.param(1, {"engine": "torch"}, marks=pytest.mark.torch),
        pytest.param(2, {"engine": "torch"}, marks=pytest.mark.torch),
        pytest.param(1, {"engine": "torch", "local_steps": 10}, marks=pytest.mark.torch),
    ],
    ids=str,
)
def test_a_run_from_a_snapshot_of_caffe_goes_on_as_caffe_does(
    tmp_path: Path, workers: int, options: dict[str, Any]
) -> None:
    """30 iterations of plain Caffe, a snapshot, 30 more; against 30 of ours from the same snapshot.

    The learning rate steps before the snapshot, and after it within a turn of ten steps.
    """
    policy = {"lr_policy": '"multistep"', "gamma": 0.3, "stepvalue": [13, 34, 47]}
    solver = smooth_solver(tmp_path, max_iter=60, snapshot_prefix=f'"{tmp_path}/plain"', **policy)
    images, labels = records(240, 5)
    if workers > 1:  # one solver must read what two read from their shards
        share = BATCH // workers
        order = [
            rank + workers * (batch * share + place)
            for batch in range(60)
            for rank in range(workers)
            for place in range(share)
        ]
        order = [number % 240 for number in order]
        shutil.rmtree(tmp_path / "shards")
        write_lmdb(tmp_path / "shards", images[order], labels[order])
    caffe = load_caffe()
    caffe.set_mode_cpu()
    caffe.set_solver_count(1)
    caffe.set_solver_rank(0)
    with contextlib.chdir(tmp_path):
        plain = caffe.get_solver(str(solver))
        plain.step(30)
        plain.snapshot()
        start = weights(tmp_path / "plain_iter_30.caffemodel", solver)
        again = caffe.get_solver(str(solver))
        again.restore("plain_iter_30.solverstate")
        again.step(30)
        parameters = Parameters(again.net)
        expected = parameters.layout.zeros()
        parameters.read(expected)
    if workers > 1:
        shutil.rmtree(tmp_path / "shards")
        write_lmdb(tmp_path / "shards", images, labels)
    with PrivateRedis() as server:
        result, before, center = train_here(
            solver,
            RedisStore(server.url),
            tmp_path / "run",
            workers=workers,
            resume=tmp_path / "plain_iter_30.solverstate",
            **options,
        )
    np.testing.assert_array_equal(before, start)
    assert (result.complete, result.iteration) == (True, 60)
    assert relative_difference(center, expected, start) < 1e-5


def test_a_history_waits_for_a_worker_that_joins_late(tmp_path: Path) -> None:
    """It is of no use to anybody else, and there is one for each slot: it goes with the run."""
    solver = smooth_solver(tmp_path, max_iter=20)
    train_here(solver, MemoryStore(), tmp_path / "first", workers=2, checkpointed=True)
    (path,) = checkpoints_in(tmp_path / "first" / "checkpoints")
    now = 0.0
    store = MemoryStore(clock=lambda: now)
    kept = read_checkpoint(path)
    overrides = SolverOverrides(max_iter=22)
    train_here(solver, store, tmp_path / "run", workers=2, checkpoint=kept, overrides=overrides)
    now = 1e6
    for slot in (0, 1):
        assert take_history(store, "here:0", slot, kept.counters.version) == kept.histories[slot]


def test_a_resume_says_whose_momentum_begins_at_zero(tmp_path: Path) -> None:
    counters = Counters("ab12", 0, "sync", 7, 7, 70, 9, 1.0, 3)

    def told(*slots: int) -> str:
        return Resumed(tmp_path, tmp_path / "one", counters, slots, ()).notes(3)[0]

    assert told(0, 1, 2).endswith("position in the data, solver history of 3 of 3 workers")
    assert told(1).endswith(
        "solver history of 1 of 3 workers; the momentum of the others begins at 0"
    )
    assert told().endswith("are not in the checkpoint: momentum begins at 0")
