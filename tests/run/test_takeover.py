"""What a master takes over: the newest center that is whole, else a checkpoint, else the beginning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import StoreUnavailableError
from speedo.exchange.transfer import put_state, put_vector
from speedo.exchange.vector import Layout
from speedo.master.journal import Journal, JournalFile, JournalInStore, JournalPlace
from speedo.messages import Kind, Merge, Part
from speedo.run.settings import Near, RunSettings
from speedo.run.takeover import Takeover
from speedo.run_dir.checkpoint_file import Checkpoint, Counters, WorkerState, write_checkpoint
from speedo.run_dir.directory import CHECKPOINTS
from speedo.storage import keys
from speedo.storage.lease import MasterFence, MasterLease
from tests.support.conditional_memory import ConditionalMemory
from tests.support.disks import has_room

ENGINE = QuadraticEngine(4)
LAYOUT = ENGINE.layout


def counters(version: int, epoch: int = 1, layout: Layout = LAYOUT) -> Counters:
    return Counters("run", epoch, "async", version, version, version, version, 0.0, layout.digest)


class Former:
    """What a master of epoch 1 has left at versions 4 and 5, of which both are in the store."""

    def __init__(self, folder: Path, *, whole: bool = True, leased: bool = False) -> None:
        self.folder, self.store = folder, ConditionalMemory()
        self.settings: Any = RunSettings(
            "run",
            "1",
            None,
            1,
            (1,),
            0,
            1.0,
            near=Near(folder=str(folder)),  # type: ignore[arg-type]
        )
        self.fence: MasterFence | None = None
        if not leased:
            place: JournalPlace = JournalFile(folder, 1, has_room)
        else:
            self.fence = MasterFence(
                self.store, "run", MasterLease(self.store, "run").claim(least=1)
            )
            self.store.guard = self.fence.guard
            place = JournalInStore(self.fence.guard)
        journal = Journal(place, lambda: counters(version), whole=lambda: whole)
        for version in (4, 5):
            journal.merging(
                Merge(version, version, version, 1.0, (Part(0, 1, 100 + version, 1, 0, 0.0),))
            )
            journal.publishing()
            self.put(version, np.full(4, version, np.float32))

    def keep(self, version: int, rule: bytes, history: bytes) -> None:
        put_state(self.store, "run:1", version, len(rule).to_bytes(8, "little"), rule, history)

    def put(self, version: int, vector: Any) -> None:
        said = {"version": version, "epoch": 1}
        body = memoryview(vector).cast("B")
        put_vector(self.store, keys.center("run:1", version), LAYOUT, Kind.CENTER, body, **said)

    def checkpoint(self, version: int) -> None:
        center = np.full(4, version, np.float32)
        write_checkpoint(self.folder / CHECKPOINTS, Checkpoint(counters(version, 0), center))

    def taken_over(self) -> tuple[Takeover, Checkpoint | None]:
        found = Takeover(self.store, self.folder, self.fence)
        return found, found.as_checkpoint(ENGINE, self.settings)


@pytest.mark.parametrize("leased", [False, True])
def test_the_newest_version_and_what_is_merged_in_it(tmp_path: Path, leased: bool) -> None:
    former = Former(tmp_path, leased=leased)
    assert bool(list(tmp_path.iterdir())) != leased, "one journal, and not two"
    found, begun = former.taken_over()
    assert begun is not None
    assert (begun.counters, begun.center.tolist()) == (counters(5), [5.0] * 4)
    assert found.newest
    assert [one.version for one in found.merges] == [5]
    assert not found.counts(0, 105)
    assert found.counts(0, 106)
    assert found.counts(1, 3)


def test_the_one_before_if_the_newest_was_not_published(tmp_path: Path) -> None:
    former = Former(tmp_path)
    former.store.delete(keys.center("run:1", 5))
    found, begun = former.taken_over()
    assert begun is not None
    assert (begun.counters.version, begun.center.tolist()) == (4, [4.0] * 4)
    assert found.counts(0, 105)  # its merge is undone


@pytest.mark.parametrize("fault", ["not finite", "another version", "of another net"])
def test_a_center_that_is_not_whole_is_not_taken(tmp_path: Path, fault: str) -> None:
    former = Former(tmp_path)
    if fault == "not finite":
        former.put(5, np.full(4, np.nan, np.float32))
    elif fault == "another version":
        vector = memoryview(np.zeros(4, np.float32)).cast("B")
        key = keys.center("run:1", 5)
        put_vector(former.store, key, LAYOUT, Kind.CENTER, vector, version=9, epoch=1)
    else:
        other = QuadraticEngine(3).layout
        vector = memoryview(np.zeros(3, np.float32)).cast("B")
        put_vector(former.store, keys.center("run:1", 5), other, Kind.CENTER, vector, version=5)
    _, begun = former.taken_over()
    assert begun is not None
    assert begun.counters.version == 4


def test_a_checkpoint_where_the_center_alone_is_not_enough(tmp_path: Path) -> None:
    former = Former(tmp_path, whole=False)
    found, begun = former.taken_over()
    assert begun is None  # the beginning
    former.checkpoint(2)
    found, begun = former.taken_over()
    assert begun is not None
    assert begun.counters.version == 2
    assert not found.newest
    assert not found.counts(1, 10**9)
    assert found.incarnations == {0: 1}


def test_what_rule_and_solver_have_kept_at_the_version(tmp_path: Path) -> None:
    former = Former(tmp_path, whole=False)
    former.keep(4, b"rule", b"")
    former.keep(5, b"a rule", b"a history")
    _, begun = former.taken_over()
    assert begun is not None
    assert (begun.counters.version, begun.rule_state, begun.master_history) == (5, b"a rule", b"a history")  # fmt: skip
    former.store.delete(keys.rule_state("run:1", 5))
    found, begun = former.taken_over()
    assert begun is not None
    assert (begun.counters.version, begun.rule_state, begun.master_history) == (4, b"rule", b"")
    assert found.newest


@pytest.mark.parametrize("damage", [b"", b"1234567", (99).to_bytes(8, "little") + b"short"])
def test_what_was_kept_and_is_damaged_is_not_taken(tmp_path: Path, damage: bytes) -> None:
    former = Former(tmp_path, whole=False)
    former.checkpoint(2)
    put_state(former.store, "run:1", 5, damage)
    found, begun = former.taken_over()
    assert begun is not None
    assert (begun.counters.version, found.newest) == (2, False)


def test_a_journal_of_another_run_is_not_read(tmp_path: Path) -> None:
    former = Former(tmp_path)
    former.settings = replace(former.settings, run="another")
    assert former.taken_over()[1] is None


def test_from_a_redis_that_has_lost_all_a_run_with_a_lease_goes_back_to_a_checkpoint(
    tmp_path: Path,
) -> None:
    former = Former(tmp_path, leased=True)
    former.checkpoint(2)
    assert former.fence is not None
    former.fence = MasterFence(ConditionalMemory(), "run", former.fence.guard.epoch)
    found, begun = former.taken_over()
    assert begun is not None
    assert (begun.counters.version, found.newest) == (2, False)


def test_a_redis_that_does_not_answer_is_no_reason_to_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The center is there: a checkpoint would undo what was seen."""
    former = Former(tmp_path, leased=True)
    former.checkpoint(2)

    def refuse(*_: object) -> None:
        raise StoreUnavailableError("no Redis answers")

    monkeypatch.setattr(former.store, "read", refuse)
    with pytest.raises(StoreUnavailableError):
        former.taken_over()


def line(worker: int, version: int) -> str:
    said = f'"event":"result","decision":"merged","worker":{worker},"version":{version}'
    return f'{{"time":{version}.0,{said}}}\n'


def test_on_another_machine_the_log_has_each_published_result_once(tmp_path: Path) -> None:
    former = Former(tmp_path, leased=True)
    assert former.fence is not None
    former.fence.expect_standby(True)
    journal = Journal(JournalInStore(former.fence.guard), lambda: counters(version))
    for version in (6, 7, 8):
        parts = tuple(Part(worker, 1, 100 + version, 1, 0, 0.0) for worker in (0, 1))
        journal.merging(Merge(version, version, version, 1.0, parts))
        journal.publishing()
        former.put(version, np.full(4, version, np.float32))
    log = tmp_path / "metrics.jsonl"
    # Half of version 6 has come, and the former master has written a line of one that it never published.
    log.write_text(
        line(0, 4) + line(0, 5) + line(1, 6) + '{"time":7.0,"event":"left"}\n' + line(0, 9)
    )
    history = WorkerState(0, 1, 1, 7)
    center = np.full(4, 3, np.float32)
    kept = Checkpoint(counters(3, 0), center, workers={0: history}, histories={0: b"momentum"})
    write_checkpoint(tmp_path / CHECKPOINTS, kept)
    former.settings = replace(former.settings, moved=True)
    found, checkpoint = former.taken_over()
    assert checkpoint is not None
    assert checkpoint.counters.version == 8
    read = replace(history, batches=7 + 5)  # and what was merged since
    assert (checkpoint.workers, checkpoint.histories) == ({0: read}, {0: b"momentum"})
    assert log.read_text() == line(0, 4) + line(0, 5) + '{"time":7.0,"event":"left"}\n'
    assert [merge.version for merge in found.merges if merge.version > 5] == [6, 7, 8]


@pytest.mark.parametrize("damaged", [False, True])
def test_with_new_workers_on_the_same_machine_the_log_is_left_as_it_is(
    tmp_path: Path, damaged: bool
) -> None:
    former = Former(tmp_path)
    log = tmp_path / "metrics.jsonl"
    log.write_text(line(0, 4))
    center = np.full(4, 3, np.float32)
    state = {0: WorkerState(0, 1, 1, 7)}
    kept = Checkpoint(counters(3, 0), center, workers=state, histories={0: b"momentum"})
    path = write_checkpoint(tmp_path / CHECKPOINTS, kept)
    if damaged:
        path.write_bytes(path.read_bytes()[:-1])
    former.settings = replace(former.settings, moved=True)
    found, checkpoint = former.taken_over()
    assert checkpoint is not None
    assert checkpoint.counters.version == 5
    assert checkpoint.histories == ({} if damaged else {0: b"momentum"})
    assert log.read_text() == line(0, 4)
    assert [merge.version for merge in found.merges] == [5]


def test_without_a_standby_the_former_entries_are_not_kept(tmp_path: Path) -> None:
    former = Former(tmp_path, leased=True)
    assert former.fence is not None
    assert former.fence.former_entries() == []
