"""A worker that takes another shard keeps its momentum, in the same process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from speedo.actors.worker_actor import WorkerActor, scratch_of
from speedo.engines.base import Engine
from speedo.engines.caffe_import import load_caffe
from speedo.engines.make import CAFFE
from speedo.engines.pycaffe import PycaffeEngine
from speedo.engines.solver import read_solver
from speedo.master.sharding import Sharding
from speedo.master.slots import Roster
from speedo.run.config.run_config import make_config
from speedo.run.prepare import run_settings
from tests.support.nets import net_text, write_data, write_solver
from tests.support.own_stderr import restore_stderr

pytestmark = pytest.mark.caffe
NOBODY = "redis://127.0.0.1:1/0"  # a store connects at its first call, and none is made here


@pytest.fixture
def own_stderr() -> Iterator[None]:
    """An actor takes the standard error of its process; give it back to pytest's."""
    former = os.dup(2)
    yield
    restore_stderr(former)


def momentum(engine: Engine) -> list[np.ndarray]:
    """The solver's history, blob by blob."""
    state = load_caffe().proto.caffe_pb2.SolverState()
    state.ParseFromString(engine.history().split(b"\n", 1)[1])
    return [np.array(blob.data) for blob in state.history]


@pytest.mark.usefixtures("own_stderr")
def test_a_rebuilt_worker_has_another_shard_and_the_same_history(tmp_path: Path) -> None:
    write_data(tmp_path)
    spec = read_solver(write_solver(tmp_path, net_text(batch=24)))
    config = make_config({"mode": "sync", "workers": 3})
    settings = replace(run_settings(config, spec, "ab12cd34"), redis_url=NOBODY)
    roster = Roster(settings.batch_sizes, spec.iter_size)
    place, *_ = [replace(roster.assign(), redis_url=NOBODY) for _ in range(3)]
    log = tmp_path / "worker-0.log"
    actor = WorkerActor()
    actor.warm_up(CAFFE)  # as a host does before it has a place
    scratch = scratch_of(tmp_path, place, settings.epoch)
    assert actor.start(settings, place, log, scratch, None).samples_per_step == 8
    engine = actor._worker.engine
    engine.step(3)
    history = momentum(engine)
    assert any(np.any(blob) for blob in history)

    ((_, moved), *_) = roster.reshard(Sharding((0, 2), (12, 12)), [(0, 1), (2, 1)], samples=24 * 2)
    assert actor.rebuild(replace(moved, redis_url=NOBODY)).samples_per_step == 12
    rebuilt = actor._worker.engine
    assert isinstance(rebuilt, PycaffeEngine)
    assert rebuilt is not engine
    assert (rebuilt._rank, rebuilt._count, moved.skip) == (0, 2, 2)
    assert all(map(np.array_equal, momentum(rebuilt), history))
    assert actor._worker.incarnation == 2
    rebuilt.step(1)
    assert not any(map(np.array_equal, momentum(rebuilt), history))
    rebuilt.close()
    assert scratch.is_dir()
