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
from speedo.messages import Checkpointed, Event
from speedo.simulation.simulator import SimulatedCluster
from speedo.simulation.trace import Trace
from speedo.storage import keys
from speedo.storage.base import remove_run
from speedo.storage.memory_store import MemoryStore
from tests.support.schedules import MODES, make_schedule, run

SEEDS = range(10)


class HangingDisk:
    """Takes `write_s` virtual seconds for each call; hangs between the two times."""

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


@pytest.mark.parametrize("mode", MODES)
def test_a_disk_that_hangs_at_any_time_costs_checkpoints_and_not_the_run(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that was begun is told, written or not; the run ends, and waits for the disk only so long."""
    monkeypatch.setattr("os.fsync", lambda file: None)
    silent = 0
    for seed in SEEDS:
        chance = random.Random(f"disk {mode} {seed}")
        disks: list[HangingDisk] = []
        keepers: list[CheckpointWriter] = []

        def checkpoints(center: RunCenter, cluster: SimulatedCluster) -> CheckpointWriter:
            keeper = CheckpointWriter(
                tmp_path / str(seed), "run", "simulated", mode, center, MemoryStore, lambda: None,
                chance.choice((0.0, 0.3, 2.0)), clock=cluster.clock,
            )  # fmt: skip
            keeper.close()
            disks.append(HangingDisk(cluster, chance))
            keeper._thread = disks[-1]  # type: ignore[assignment]
            keepers.append(keeper)
            return keeper

        class Ends(Trace):
            finished = 0.0
            told: list[str]

            def saw(self, event: Event, now: float) -> None:
                super().saw(event, now)
                if isinstance(event, Checkpointed):
                    self.told.append(event.problem)

            def did(self, action: Any, now: float) -> None:
                super().did(action, now)
                self.finished = now

        (tmp_path / str(seed)).mkdir()
        trace = Ends()
        trace.told = []
        checker = run(make_schedule(mode, chance), trace, checkpoints=checkpoints)
        (keeper,), (disk,) = keepers, disks
        assert disk.cluster.now - trace.finished < 2 * WRITE_S + 60.0
        if checker.counts["merged"]:
            assert trace.told, "nothing is known of the last checkpoint"
        hung = [problem for problem in trace.told if problem.startswith(str(tmp_path))]
        silent += bool(hung)
        assert bool(hung) >= bool(keeper.hangs)
    assert silent >= 2


@pytest.mark.parametrize("mode", MODES)
def test_a_master_that_is_fenced_at_any_time_leaves_its_successors_keys_alone(mode: str) -> None:
    fenced = 0
    for seed in SEEDS:
        chance = random.Random(f"fence {mode} {seed}")
        taken_over, epoch = chance.uniform(0.0, 3.0), chance.choice((0, 9))
        clusters: list[SimulatedCluster] = []
        theirs: dict[str, bytes] = {}

        def take_over() -> None:
            """A successor resumes the run in the same store."""
            for key in (keys.center, keys.rounded):
                theirs[key(f"ab12:{epoch + 1}", chance.randrange(9))] = chance.randbytes(4)
            for key in (keys.payload, keys.state):
                theirs[key(f"ab12:{epoch + 1}", chance.randrange(9), 7)] = chance.randbytes(4)
            for key, body in theirs.items():
                clusters[0].store.write(key, b"", memoryview(body))

        def script(cluster: SimulatedCluster) -> None:
            clusters.append(cluster)
            cluster.at(taken_over, take_over)

        def fence() -> None:
            if theirs:
                raise FencedError("another master has resumed this run")

        try:
            run(make_schedule(mode, chance), script=script, run=f"ab12:{epoch}", fence=fence)
        except FencedError:
            fenced += 1
        store = clusters[0].store
        remove_run(store, "ab12", epoch)  # as if it did not know yet
        left = store.keys(keys.prefix("ab12"))
        assert left == sorted(theirs)
        for key, body in theirs.items():
            found = bytearray(4)
            store.read(key, memoryview(found))
            assert found == body
    assert fenced >= 2
