"""The actor of a script, without Ray: what it passes on, and how long it waits for the script."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from speedo.actors.ray_cluster import RayCluster
from speedo.actors.script_actor import ScriptActor
from speedo.exchange.channel import WorkerChannel
from speedo.messages import SaveState, StateSaved


def test_a_script_that_does_not_save_its_state_costs_its_actor_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each checkpoint left one more call waiting: after a few the actor answered nobody."""
    actor = ScriptActor()
    actor._link, script = Pipe()
    actor._done = True
    threading.Thread(target=actor._listen, daemon=True).start()
    monkeypatch.setattr("speedo.actors.script_actor.SAVED_S", 0.05)
    problem = "its script has not answered within 0 s"
    assert actor.save_state(SaveState(0, 1, 7)) == StateSaved(0, 1, 7, problem=problem)
    script.send(StateSaved(0, 1, 7, batches=1))  # too late, and no answer to the next
    monkeypatch.setattr("speedo.actors.script_actor.SAVED_S", 60.0)
    script.send(StateSaved(0, 1, 9, batches=2))
    assert actor.save_state(SaveState(0, 1, 9)) == StateSaved(0, 1, 9, batches=2)
    script.close()
    ended = StateSaved(0, 1, 11, problem="its script has ended")
    assert actor.save_state(SaveState(0, 1, 11)) == ended


def test_a_worker_that_joins_a_run_that_is_over_gets_no_channel_that_stays_open(
    tmp_path: Path,
) -> None:
    """Its script waited for a turn for ever."""
    cluster, channels = RayCluster(lambda worker, incarnation: None, tmp_path), list[Any]()

    def serve(folder: str, worker: int, incarnation: int) -> Any:
        channels.append(WorkerChannel(folder, worker, incarnation))
        return SimpleNamespace(future=Future)

    handle = SimpleNamespace(serve=SimpleNamespace(remote=serve))
    cluster.hang_up()
    cluster.join(0, 1, handle, SimpleNamespace(near=True, model=None))  # type: ignore[arg-type]
    with channels[0] as channel:
        assert list(channel.commands()) == []
    assert cluster.live() == []
