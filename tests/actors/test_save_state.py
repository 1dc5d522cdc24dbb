"""What a worker saves for a checkpoint: how far its solver read the data, and the history to go on with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from speedo.actors.worker_actor import WorkerActor, scratch_of
from speedo.engines.make import CAFFE
from speedo.engines.solver import read_solver
from speedo.exchange.vector import Layout, as_bytes, header_for
from speedo.master.slots import Assignment
from speedo.messages import Kind, OwnResults, SaveState, StateSaved, Train
from speedo.run.config.run_config import make_config
from speedo.run.prepare import run_settings
from speedo.run.settings import RunSettings
from speedo.storage import keys
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from tests.support.nets import net_text, write_data, write_solver
from tests.support.own_stderr import restore_stderr

pytestmark = [pytest.mark.caffe, pytest.mark.redis]


@pytest.fixture
def own_stderr() -> Iterator[None]:
    """An actor takes the standard error of its process; give it back to pytest's."""
    former = os.dup(2)
    yield
    restore_stderr(former)


def started(settings: RunSettings, place: Assignment, folder: Path) -> WorkerActor:
    actor, scratch = WorkerActor(), scratch_of(folder, place, settings.epoch)
    actor.warm_up(CAFFE)
    actor.start(settings, place, folder / "worker-1.log", scratch, None)
    return actor


def publish(store: RedisStore, settings: RunSettings, layout: Layout) -> None:
    """A center for which every batch has a loss of its own."""
    vector = np.random.default_rng(1).standard_normal(layout.zeros().size).astype(np.float32)
    body = as_bytes(vector)
    header = header_for(body, layout, Kind.CENTER, version=0)
    store.write(keys.center(settings.keyspace, 0), header.pack(), body)


@pytest.mark.usefixtures("own_stderr")
@pytest.mark.parametrize("overlap", ["none", "all"])
def test_who_takes_over_what_a_worker_saved_reads_its_next_batch(
    overlap: Literal["none", "all"], tmp_path: Path
) -> None:
    """It passed over 5 batches and trained on 3, in two turns; in the second, where they overlap, ahead."""
    write_data(tmp_path, train=240)
    spec = read_solver(write_solver(tmp_path, net_text(batch=24)))
    with PrivateRedis() as server:
        config = make_config({"mode": "async", "workers": 3})
        settings = replace(
            run_settings(config, spec, "ab12cd34"), redis_url=server.url, overlap=overlap
        )
        place = Assignment(1, 1, 1, 3, 8, skip=5, redis_url=server.url)
        actor = started(settings, place, tmp_path)
        publish(RedisStore(server.url), settings, actor._worker.engine.layout)
        ahead = OwnResults(pending=1) if overlap == "all" else OwnResults()
        actor.turn(Train(1, 1, 1, 0, 0, 1, 1, Kind.DELTA))
        actor.turn(Train(1, 1, 2, 0, 1, 2, 1, Kind.DELTA, own=ahead))
        saved = actor.save_state(SaveState(1, 1, 7))
        assert saved == StateSaved(1, 1, 7, 8, 1, 3, 8)

        losses = [actor.turn(Train(1, 1, 3, 0, 3, 1, 1, Kind.DELTA)).loss]
        lost = []
        for skip in (saved.batches, saved.batches + 1):
            other = replace(place, incarnation=2 + skip, skip=skip, history=7)
            successor = started(settings, other, tmp_path)
            lost.append(successor._lost)
            losses.append(successor.turn(Train(1, 2 + skip, 4, 0, 3, 1, 1, Kind.DELTA)).loss)
        assert losses[0] == losses[1] != losses[2]
        assert lost[0] == ""
        assert "solver history of the checkpoint is lost, so momentum begins at 0" in lost[1]
