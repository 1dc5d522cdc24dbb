"""Runs of a script in this process: worker 0 brings the model, no solver is read, its arrays are exported by name."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import ClusterError, TrainingStopped
from speedo.exchange.transfer import put_history
from speedo.exchange.vector import Blob, Layout, Vector
from speedo.master.lease_book import LeaseBook
from speedo.master.leases import Leases
from speedo.master.script_tests import ScriptTests
from speedo.messages import Command, Event, Joined, Left, Train
from speedo.run.config.run_config import RunConfig, make_config
from speedo.run.open_store import this_machine
from speedo.run.run_parts import RunParts, run_parts
from speedo.run.script_job import FirstModel, ScriptJob
from speedo.run.script_resume import FormerRun
from speedo.run.script_start import ScriptStart
from speedo.run.settings import Near, RunSettings
from speedo.run.trained_model import ScriptModel
from speedo.run.training import Training
from speedo.run_dir.directory import create_run_dir
from speedo.storage.memory_store import MemoryStore
from speedo.watch.console import plain_line
from speedo.worker.turn import EngineWorker
from tests.support.disks import small_disk
from tests.support.every_mode import MODES, options_of
from tests.whole_runs.local import LocalCluster

BATCH, TURNS, SIZE = 4, 12, 8


def nothing() -> None:
    """There is nothing to do later."""


class Scripts(LocalCluster):
    """Workers whose scripts end after `TURNS` turns each, a worker's number of them more."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: dict[int, int] = {}

    def send(self, command: Command) -> None:
        assert isinstance(command, Train)
        worker = command.worker
        if self.turns.setdefault(worker, 0) >= TURNS + worker:
            self.events.append(Left(worker, command.incarnation, "its script has ended", done=True))
        else:
            self.turns[worker] += 1
            super().send(command)


class ScriptRun:
    """The parts of a run before its model is known."""

    def __init__(
        self,
        run_dir: Path,
        workers: int = 3,
        near: Near = Near(),  # noqa: B008
        redis_url: str = "",
        former: FormerRun | None = None,
        **options: Any,
    ) -> None:
        self.config: RunConfig = make_config(
            {"workers": workers, "split_batch": False, "final_test": False, **options}
        )
        command = () if self.config.own else ("python", "/home/user/train.py")
        job, store = ScriptJob(Path("/home/user/train.py"), command), MemoryStore()
        self.settings = RunSettings(
            "here", "1", job, workers, (1,) * workers, seed=1, timeout_s=self.config.timeout,
            near=near, redis_url=redis_url,
        )  # fmt: skip
        self.cluster, resume = Scripts(), None if former is None else former.for_workers(workers)
        leases = Leases(LeaseBook(1) if former is None else former.book, print)
        self.parts: RunParts = run_parts(
            self.config, self.settings, create_run_dir(run_dir), store, None, resume
        )
        self.start = ScriptStart(
            self.config,
            self.parts,
            self.cluster,
            leases,
            ScriptTests(self.cluster.events.append),
            former,
        )
        self.engines = [
            QuadraticEngine(SIZE, rank=one, count=workers, batch=BATCH, noise=0.3)
            for one in range(workers)
        ]

    def first_weights(self) -> Vector:
        """Those that worker 0 puts into the store."""
        weights = np.linspace(-1.0, 1.0, SIZE, dtype=np.float32)
        put_history(self.parts.store, self.settings.keyspace, 0, 0, weights.tobytes())
        return weights

    def join(self) -> Training | None:
        """One more worker joins with its model; if that of the run is missing, later."""
        place = self.parts.roster.assign()
        engine = self.engines[place.worker]
        self.cluster.workers[place.worker] = EngineWorker(
            self.settings.keyspace, place.worker, place.incarnation, engine, self.parts.store, time.monotonic,
            compression=self.settings.compression,
        )  # fmt: skip
        joined: Event = Joined(place.worker, place.incarnation, engine.samples_per_step)
        later = partial(self.cluster.events.append, joined)
        model = FirstModel(engine.layout.blobs, BATCH)
        training = self.start.take(place.worker, model, later)
        if training is not None:
            later()
        return training


def join_all(run: ScriptRun) -> Training:
    for _ in run.engines:
        run.join()
    return run.start.wait()


@pytest.mark.parametrize("mode", MODES)
def test_a_script_is_trained_to_its_end_and_exported(tmp_path: Path, mode: str) -> None:
    run = ScriptRun(tmp_path / "run", **options_of(mode, 20))
    first = run.first_weights()
    training = join_all(run)
    np.testing.assert_array_equal(training.center.vector, first)

    result = training.run()

    assert (result.complete, result.reason) == (True, "every script has ended")
    assert result.iteration == result.samples // BATCH > TURNS
    assert result.model == str(tmp_path / "run/model.npz")
    with np.load(result.model, allow_pickle=False) as exported:
        assert list(exported) == ["w/0"]
        np.testing.assert_array_equal(exported["w/0"], training.center.vector)
    judge = QuadraticEngine(SIZE)
    judge.load_weights(first)
    before = judge.evaluate()["loss"]
    judge.load_weights(training.center.vector)
    assert judge.evaluate()["loss"] < 0.1 * before
    kept = json.loads((tmp_path / "run/result.json").read_text())
    assert kept["model"] == result.model
    config = (tmp_path / "run/config.yaml").read_text()
    assert "script: /home/user/train.py" in config
    assert "solver" not in config
    assert training.status().over
    assert plain_line(training.status()).startswith(f"iteration {result.iteration}, ")


def test_without_a_solver_tensorboard_has_no_learning_rate(tmp_path: Path) -> None:
    run = ScriptRun(tmp_path / "run", mode="async", tensorboard=True)
    run.first_weights()
    join_all(run).run()
    (events,) = (tmp_path / "run").glob("events.out.tfevents.*")
    assert b"train/loss" in events.read_bytes()
    assert b"learning_rate" not in events.read_bytes()


def test_workers_wait_until_the_first_worker_brings_the_model(tmp_path: Path) -> None:
    run = ScriptRun(tmp_path / "run", workers=2)
    run.first_weights()
    joined: list[str] = []
    model = FirstModel(run.engines[0].layout.blobs, BATCH)
    assert run.start.take(1, model, lambda: joined.append("former")) is None
    assert run.start.take(1, model, lambda: joined.append("successor")) is None
    assert run.start.take(0, None, lambda: joined.append("without a model")) is None
    assert run.parts.status().state == "waiting for workers"
    assert joined == []
    training = run.start.take(0, model, nothing)
    assert training is not None
    assert joined == ["successor", "without a model"]
    assert run.start.take(1, model, nothing) is run.start.wait() is training
    assert training.parts.settings.spec.batch == BATCH


def test_a_worker_that_exchanges_something_else_is_refused_with_both_names(tmp_path: Path) -> None:
    run = ScriptRun(tmp_path / "run", workers=2)
    layout = run.engines[0].layout
    model = FirstModel(layout.blobs, BATCH)
    run.start.check(0, model, layout, gradients=True)
    run.start.check(2, model, layout, gradients=True)
    problem = (
        "worker 1 exchanges deltas, worker 0 gradients: give speedo.join the same exchange= in"
    )
    with pytest.raises(ClusterError, match=problem):
        run.start.check(1, model, layout, gradients=False)
    run.parts.clean_store()


@pytest.mark.slow
def test_without_a_model_the_run_ends_with_the_number_of_workers(tmp_path: Path) -> None:
    run = ScriptRun(tmp_path / "run", workers=3, timeout=1)
    for worker in (1, 2):
        assert run.start.take(worker, FirstModel((), BATCH), nothing) is None
    run.start.forget(2)
    with pytest.raises(TrainingStopped, match=r"trained: only 1 of 3 workers joined within 1 s$"):
        run.start.wait()
    assert run.parts.status().over
    run.parts.clean_store()


def test_a_run_without_a_model_can_be_stopped(tmp_path: Path) -> None:
    run = ScriptRun(tmp_path / "run", timeout=100)
    threading.Timer(0.2, run.start.stop, ["stopped by Ctrl-C"]).start()
    with pytest.raises(TrainingStopped, match="nothing was trained: stopped by Ctrl-C"):
        run.start.wait()


def test_a_model_without_its_weights_is_refused_and_the_next_one_is_taken(tmp_path: Path) -> None:
    run = ScriptRun(tmp_path / "run", workers=1)
    with pytest.raises(ClusterError, match="the first weights of worker 0 did not arrive"):
        run.join()
    put_history(run.parts.store, run.settings.keyspace, 0, 0, b"1234")
    model = FirstModel(run.engines[0].layout.blobs, BATCH)
    with pytest.raises(ClusterError, match="have 4 bytes, but its parameters 32"):
        run.start.take(0, model, nothing)
    run.first_weights()
    assert run.start.take(0, model, nothing) is not None


@pytest.mark.processes
@pytest.mark.parametrize("redis", ["", "redis://127.0.0.1"])
def test_a_model_without_room_in_shared_memory_is_told_and_without_redis_refused(
    tmp_path: Path, redis: str
) -> None:
    """It takes 3 vectors for each of 3 workers and 4 more, of 160 kB."""
    disk, model = tmp_path / "disk", FirstModel((Blob("w", (40_000,)),), BATCH)
    with small_disk(disk, "1M"):
        near = Near(this_machine(), str(disk), by_memory=True)
        run = ScriptRun(tmp_path / "run", near=near, redis_url=redis)
        first = model.layout.zeros().tobytes()
        put_history(run.parts.store, run.settings.keyspace, 0, 0, first)
        told = "/dev/shm has 1.0 MB free, but a run with this model takes up to 2.1 MB: "
        if redis:
            assert run.start.take(0, model, nothing) is not None
            way = "vectors that find no room go through Redis"
            assert told + way in run.parts.status().notices
        else:
            with pytest.raises(ClusterError, match=f"{told}make room there, or install redis-s"):
                run.start.take(0, model, nothing)


def test_every_parameter_is_exported_by_its_name_and_shape(tmp_path: Path) -> None:
    """Among them names that `numpy.savez` would take for its own arguments."""
    layout = Layout((Blob("file", (2, 3)), Blob("layers.0.weight", ()), Blob("arr_0", (4,))))
    center = np.arange(layout.size, dtype=np.float32)
    ScriptModel(layout, layout.zeros()).export(center, tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as exported:
        assert list(exported) == ["file", "layers.0.weight", "arr_0"]
        np.testing.assert_array_equal(exported["file"], [[0, 1, 2], [3, 4, 5]])
        assert (exported["layers.0.weight"], exported["arr_0"].tolist()) == (6, [7, 8, 9, 10])
        assert {exported[name].dtype for name in exported} == {np.dtype(np.float32)}


def test_every_parameter_that_differs_is_named() -> None:
    layout = Layout((Blob("a", (2, 3)), Blob("b", (3,))))
    a, b = layout.blobs
    assert FirstModel((a, b), 1).differences(layout) == []
    other = FirstModel((Blob("a", (2,)), Blob("b", (4,))), 1)
    assert other.differences(layout) == [
        "a of shape (2,) instead of a of shape (2, 3)",
        "b of shape (4,) instead of b of shape (3,)",
    ]
    assert FirstModel((a,), 1).differences(layout) == ["no parameter instead of b of shape (3,)"]
    assert FirstModel((a, b, a), 1).differences(layout) == [
        "a of shape (2, 3) instead of no parameter"
    ]
