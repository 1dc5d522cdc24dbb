"""When a checkpoint waits for workers, and when there is nobody to wait for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from speedo.engines.quadratic import QuadraticEngine
from speedo.master.center import Center
from speedo.master.checkpoint_writer import CheckpointWriter
from speedo.master.coordinator import Coordinator, Plan
from speedo.messages import Checkpointed, Joined, Left
from speedo.run_dir.checkpoint_file import checkpoints_in
from speedo.sgd_modes.rules import AverageDeltas
from speedo.sgd_modes.synchronous import Synchronous
from speedo.storage.memory_store import MemoryStore

WORKERS = 2


def keeper_in(folder: Path) -> CheckpointWriter:
    store, layout = MemoryStore(), QuadraticEngine().layout
    center = Center("run", layout.zeros(), layout, store)
    return CheckpointWriter(folder, "run", "run", "sync", center, lambda: store, lambda: None, 1.0)


def written(keeper: CheckpointWriter) -> list[Checkpointed]:
    """What comes of the checkpoint that is gathered by now."""
    done = keeper.finished(time.monotonic())
    keeper.close()
    return done or keeper.finished(time.monotonic())


@pytest.mark.parametrize("leaving", range(WORKERS + 1))
def test_a_checkpoint_waits_for_those_that_are_there_alone(tmp_path: Path, leaving: int) -> None:
    """A run whose every worker has died would otherwise stand still for half a minute before it ends."""
    coordinator = Coordinator(Synchronous(AverageDeltas()), Plan(2, 4, workers=WORKERS))
    for worker in range(WORKERS):
        coordinator.handle(Joined(worker, 1, 1))
    for worker in range(leaving):
        coordinator.handle(Left(worker, 1, "it died"))
    keeper = keeper_in(tmp_path)
    now = time.monotonic()
    asked = keeper.begin(coordinator, 0.0, now)
    assert len(asked) == WORKERS - leaving
    for command in asked:
        assert keeper.deadline() > now
        keeper.saw(Left(command.worker, command.incarnation, "it died"))
    assert keeper.deadline() <= now
    assert [one.problem for one in written(keeper)] == [""]
    assert len(checkpoints_in(tmp_path)) == 1
