"""The master of a script's run: it starts without a net, and takes the model from worker 0, whoever joins first."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.actors.worker_actor import WorkerReady
from speedo.engines.quadratic import QuadraticEngine
from speedo.exchange.transfer import put_history
from speedo.exchange.vector import as_bytes
from speedo.master.slots import Assignment
from speedo.messages import SaveState, StateSaved, Train, Trained
from speedo.run.config.run_config import make_config
from speedo.run.open_store import run_store, this_machine
from speedo.run.script_job import FirstModel, ScriptJob
from speedo.run.settings import Near, RunSettings
from speedo.run_dir.directory import create_run_dir
from speedo.storage.shared_memory.folder import SharedMemory
from speedo.system.runs_at import RunsAt
from speedo.worker.turn import EngineWorker

pytestmark = pytest.mark.ray
BATCH, TURNS, WAIT_S = 5, 10, 60.0


class Script:
    """A worker whose script ends after `TURNS` turns."""

    def __init__(self, master: Any, settings: RunSettings, place: Assignment, size: int) -> None:
        self.master, self.place, self.turns = master, place, 0
        self.ended, self.final = threading.Event(), list[int]()
        self.engine = QuadraticEngine(size, batch=BATCH)
        store = run_store("", settings)
        self.worker = EngineWorker(
            settings.keyspace, place.worker, place.incarnation, self.engine, store, time.monotonic
        )
        if place.worker == 0:
            first = as_bytes(np.full(size, 2.0, np.float32))
            put_history(store, settings.keyspace, 0, 0, bytes(first))

    def ready(self) -> WorkerReady:
        layout = self.engine.layout
        runs_at = RunsAt("here", os.getpid(), 1, "0")
        return WorkerReady(
            runs_at, BATCH, layout.digest, near=False, model=FirstModel(layout.blobs, BATCH)
        )

    def serve(self, folder: str, worker: int, incarnation: int) -> None:
        """Returns when the script has ended."""
        self.ended.wait()

    def over(self, version: int) -> None:
        self.final.append(version)

    def finals(self) -> list[int]:
        return self.final

    def save_state(self, command: SaveState) -> StateSaved:
        """It keeps nothing."""
        return StateSaved(command.worker, command.incarnation, command.version, problem="nothing")

    def turn(self, command: Train) -> Trained | None:
        import ray

        self.turns += 1
        if self.turns > TURNS:
            ray.get(self.master.ended.remote(self.place))
            self.ended.set()
            return None
        return self.worker.turn(command)


@pytest.fixture(scope="module")
def ray_here() -> Iterator[Any]:
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        yield ray
    finally:
        ray.shutdown()


def test_the_model_comes_from_worker_0_and_the_run_ends_with_the_scripts(
    ray_here: Any, tmp_path: Path
) -> None:
    from speedo.actors.master_actor import MasterActor
    from speedo.actors.ray_node.actor_class import actor_class

    def ask(reference: Any) -> Any:
        return ray_here.get(reference, timeout=WAIT_S)

    with SharedMemory(1 << 20) as memory:
        assert memory.path is not None, memory.problem
        near = Near(this_machine(), str(memory.path), by_memory=True)
        config = make_config(
            {"mode": "async", "workers": 2, "timeout": WAIT_S, "final_test": False}
        )
        job = ScriptJob(tmp_path / "train.py")
        settings = RunSettings("here", "1", job, 2, (1, 1), seed=1, timeout_s=WAIT_S, near=near)
        run_dir = create_run_dir(tmp_path / "run")
        master = actor_class(MasterActor, threads=16).remote(
            config, settings, run_dir, tmp_path, None, None, False
        )
        ask(master.ready.remote())
        run = master.run.remote()
        ask(master.enlist.remote("here", 3, 1))
        places = [ask(master.assign.remote("here", None, request)) for request in (1, 2, 3)]
        sizes = (8, 8, 9)  # the last is another model
        scripts = [
            actor_class(Script, threads=2).remote(master, settings, place, size)
            for place, size in zip(places, sizes, strict=True)
        ]
        ready = [ask(script.ready.remote()) for script in scripts]
        for worker in (2, 1):
            ask(master.join.remote(places[worker], scripts[worker], ready[worker]))
        assert ask(master.status.remote()).state == "waiting for workers"
        assert ask(master.facts.remote())["parameters"] == 0
        ask(master.join.remote(places[0], scripts[0], ready[0]))
        differs = (
            "worker 2: the model's parameters differ in names or shapes from worker 0's: "
            "w/0 of shape (9,) instead of w/0 of shape (8,)"
        )
        alive = tuple((place.worker, place.incarnation) for place in places)
        (end,) = [one for one in ask(master.attend.remote("here", alive)).end if one.worker == 2]
        assert end.reason.startswith(differs)
        again = ask(master.assign.remote("here", None, 4))
        with pytest.raises(Exception, match="parameters differ in names or shapes") as refused:
            ask(master.join.remote(again, scripts[2], ready[2]))
        assert type(refused.value.cause).__name__ == "ClusterError"
        assert ask(master.facts.remote())["parameters"] == 8

        result = ask(run)

        assert (result.complete, result.reason) == (True, "every script has ended")
        assert result.iteration == 2 * TURNS
        # Who has ended may go on, and fetch what the run came to.
        assert [one.worker for one in ask(master.attend.remote("here", alive)).end] == [2]
        # One that joins now waited for a turn for ever; it gets what the run came to.
        late = ask(master.assign.remote("here", None, 5))
        script = actor_class(Script, threads=2).remote(master, settings, late, 8)
        ask(master.join.remote(late, script, ask(script.ready.remote())))
        assert ask(script.finals.remote()) == [result.version]
        ask(master.farewell.remote("here"))
        ask(master.clean_store.remote())
        ray_here.kill(master)
    with np.load(tmp_path / "run/model.npz") as model:
        trained = QuadraticEngine(8)
        trained.load_weights(model["w/0"])
    assert trained.evaluate()["loss"] < 1.0
