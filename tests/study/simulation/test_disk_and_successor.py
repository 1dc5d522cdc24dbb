"""Rows 25 and 26 of the fault matrix under the seeded simulator: a fenced master, and a disk that hangs."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from speedo.errors import FencedError
from speedo.master.center import RunCenter
from speedo.master.checkpoint_writer import WRITE_S, CheckpointWriter, Written
from speedo.messages import Action, Checkpointed, Event
from speedo.storage import keys
from speedo.storage.base import remove_run
from speedo.storage.memory_store import MemoryStore
from tests.support.schedules import MODES, make_schedule, run
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.trace import Trace

SEEDS = range(10)
MOST_WAIT_S = 2 * WRITE_S + 60.0  # for the disk, at the end of a run


class HangingDisk:
    """In the place of the writing thread: each call takes `write_s` virtual seconds; it hangs between two times."""

    def __init__(self, cluster: SimulatedCluster, chance: random.Random) -> None:
        self.cluster, self.free = cluster, 0.0
        self.write_s = chance.choice((0.0, 0.1, 5.0))
        self.hangs = chance.uniform(0.0, 5.0)
        self.back = self.hangs + chance.choice((3.0, 200.0, 1e6))

    def submit(self, call: Callable[[], list[Written]]) -> Future[list[Written]]:
        answer: Future[list[Written]] = Future()
        self.free = max(self.free, self.cluster.now) + self.write_s
        if self.hangs <= self.free < self.back:
            self.free = self.back
        self.cluster.at(self.free, lambda: answer.set_result(call()))
        return answer


class Told(Trace):
    """Keeps what was told of checkpoints, and when the run did something last."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.did_last = 0.0

    def saw(self, event: Event, now: float) -> None:
        super().saw(event, now)
        if isinstance(event, Checkpointed):
            self.problems.append(event.problem)

    def did(self, action: Action, now: float) -> None:
        super().did(action, now)
        self.did_last = now


def run_on_a_disk_that_hangs(mode: str, seed: int, folder: Path) -> bool:
    """Whether a checkpoint was told as one that hangs."""
    chance = random.Random(f"disk {mode} {seed}")
    made: list[tuple[CheckpointWriter, SimulatedCluster]] = []

    def checkpoints(center: RunCenter, cluster: SimulatedCluster) -> CheckpointWriter:
        interval_s = chance.choice((0.0, 0.3, 2.0))
        keeper = CheckpointWriter(
            folder, "run", "simulated", mode, center, MemoryStore, lambda: None, interval_s,
            clock=cluster.clock,
        )  # fmt: skip
        keeper.close()
        keeper._thread = HangingDisk(cluster, chance)  # type: ignore[assignment]
        made.append((keeper, cluster))
        return keeper

    told = Told()
    checker = run(make_schedule(mode, chance), told, checkpoints=checkpoints)
    ((keeper, cluster),) = made
    assert cluster.now - told.did_last < MOST_WAIT_S
    assert told.problems or not checker.counts["merged"], "nothing is known of the last checkpoint"
    hung = any(problem.startswith(f"{folder} has not answered") for problem in told.problems)
    assert hung or not keeper.hangs
    return hung


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_disk_that_hangs_at_any_time_costs_checkpoints_and_not_the_run(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not written in time is told; the run ends, and waits for the disk only so long."""
    monkeypatch.setattr("os.fsync", lambda file: None)
    hung = 0
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        folder.mkdir()
        hung += run_on_a_disk_that_hangs(mode, seed, folder)
    assert hung >= 2


def keys_of_a_successor(run: str, chance: random.Random) -> dict[str, bytes]:
    names = [
        *(key(run, chance.randrange(9)) for key in (keys.center, keys.rounded)),
        *(key(run, chance.randrange(9), 7) for key in (keys.payload, keys.state)),
    ]
    return {name: chance.randbytes(4) for name in names}


def run_that_is_taken_over(mode: str, seed: int) -> bool:
    """Whether the master found out before its end. What a successor wrote into the same store is there after all."""
    chance = random.Random(f"fence {mode} {seed}")
    taken_over, epoch = chance.uniform(0.0, 3.0), chance.choice((0, 9))
    clusters: list[SimulatedCluster] = []
    theirs: dict[str, bytes] = {}

    def take_over() -> None:
        theirs.update(keys_of_a_successor(f"ab12:{epoch + 1}", chance))
        for key, body in theirs.items():
            clusters[0].store.write(key, b"", memoryview(body))

    def script(cluster: SimulatedCluster) -> None:
        clusters.append(cluster)
        cluster.at(taken_over, take_over)

    def fence() -> None:
        if theirs:
            raise FencedError("another master has resumed this run")

    more: dict[str, Any] = {"run": f"ab12:{epoch}", "fence": fence}
    fenced = False
    try:
        run(make_schedule(mode, chance), script=script, **more)
    except FencedError:
        fenced = True
    (cluster,) = clusters
    remove_run(cluster.store, "ab12", epoch)  # as if it had not found out yet
    assert cluster.store.keys(keys.prefix("ab12")) == sorted(theirs)
    for key, body in theirs.items():
        found = bytearray(4)
        cluster.store.read(key, memoryview(found))
        assert found == body
    return fenced


@pytest.mark.parametrize("mode", MODES)
def test_a_master_that_is_fenced_at_any_time_leaves_its_successors_keys_alone(mode: str) -> None:
    assert sum(run_that_is_taken_over(mode, seed) for seed in SEEDS) >= 2
