"""When a checkpoint waits for workers, and when there is nobody to wait for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import FencedError
from speedo.exchange.transfer import put_history
from speedo.master.center import Center
from speedo.master.checkpoint_writer import (
    GATHER_S,
    MOST_WAITING,
    NO_HISTORY,
    POLL_S,
    WRITE_S,
    CheckpointWriter,
    Written,
)
from speedo.master.coordinator import Coordinator
from speedo.master.plan import Plan
from speedo.messages import Checkpointed, Joined, Left, SaveState, Snapshotted, StateSaved
from speedo.run_dir.checkpoint_file import (
    Checkpoint,
    Counters,
    TrainingProgress,
    WorkerState,
    checkpoints_in,
    read_checkpoint,
)
from speedo.sgd_modes.rules import AverageDeltas
from speedo.sgd_modes.synchronous import Synchronous
from speedo.storage.memory_store import MemoryStore
from tests.support.commands import how_loaded

WORKERS = 2


class CountingStore(MemoryStore):
    """Counts how often it was opened and closed."""

    opened = closed = 0

    def open(self) -> CountingStore:
        self.opened += 1
        return self

    def close(self) -> None:
        self.closed += 1


def keeper_in(folder: Path) -> CheckpointWriter:
    store, layout = MemoryStore(), QuadraticEngine().layout
    center = Center("run", layout.zeros(), layout, store)
    return CheckpointWriter(folder, "run", "run", "sync", center, lambda: store, lambda: None, 1.0)


def written(keeper: CheckpointWriter) -> list[Written]:
    """What comes of what is gathered by now."""
    done = keeper.finished(time.monotonic())
    keeper.close()
    return [*done, *keeper.finished(time.monotonic())]


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
    (done,) = written(keeper)
    assert isinstance(done, Checkpointed)
    assert done.bytes > 0
    assert done.histories == ()
    assert done.problem.startswith(NO_HISTORY)
    assert done.problem.count("it left before") == WORKERS - leaving
    assert len(checkpoints_in(tmp_path)) == 1


# ---------------------------------------------------------------- what is written, and when


def resumed_run() -> Coordinator:
    """Two workers at version 6, with 14 samples merged in batches of 2 and 9 results received."""
    plan = Plan(2, 100, workers=WORKERS)
    coordinator = Coordinator(Synchronous(AverageDeltas()), plan, version=6, samples=14, received=9)
    for worker in range(WORKERS):
        coordinator.handle(Joined(worker, 4 + worker, 1))
    return coordinator


def make(folder: Path, store: CountingStore | None = None, **change: object) -> CheckpointWriter:
    store, layout = store or CountingStore(), QuadraticEngine().layout
    vector = np.arange(layout.size, dtype=np.float32)
    center = Center("run", vector, layout, store)
    values: dict[str, object] = {"fence": lambda: None, "interval_s": 10.0, **change}
    return CheckpointWriter(folder, "run", "keys", "sync", center, store.open, **values)  # type: ignore[arg-type]


def saved(
    worker: int, version: int = 6, incarnation: int | None = None, problem: str = ""
) -> StateSaved:
    incarnation = 4 + worker if incarnation is None else incarnation
    if problem:
        return StateSaved(worker, incarnation, version, problem=problem)
    return StateSaved(worker, incarnation, version, 30 + worker, worker, WORKERS, 5)


def only(folder: Path) -> Checkpoint:
    (path,) = checkpoints_in(folder)
    return read_checkpoint(path)


def test_a_checkpoint_has_the_books_the_center_and_what_the_workers_saved(tmp_path: Path) -> None:
    store = CountingStore()
    keeper = make(
        tmp_path,
        store,
        epoch=3,
        seconds_before=5.0,
        server_history=lambda: b"master",
        dropped=lambda: {"late": 2},
    )
    for worker in range(WORKERS):
        put_history(store, "keys", worker, 6, b"momentum %d" % worker)
    asked = keeper.begin(resumed_run(), 7.0, 0.0)
    assert asked == [SaveState(0, 4, 6), SaveState(1, 5, 6)]
    keeper.center.vector.fill(-1.0)  # training goes on
    for event in (saved(0, version=5), saved(1, incarnation=6), saved(0), saved(1)):
        assert keeper.finished(0.0) == []
        keeper.saw(event)
    (done,) = written(keeper)
    assert (done.version, done.iteration, done.seconds, done.problem) == (6, 7, 12.0, "")
    (path,) = checkpoints_in(tmp_path)
    assert done.bytes == path.stat().st_size
    found, layout = only(tmp_path), keeper.center.layout
    assert found.counters == Counters(
        "run", 3, "sync", 6, 7, 14, 9, 12.0, layout.digest, {"late": 2}, TrainingProgress()
    )
    assert found.center.tolist() == [*range(layout.size)]
    assert found.master_history == b"master"
    assert found.workers == {0: WorkerState(0, 2, 5, 30), 1: WorkerState(1, 2, 5, 31)}
    assert found.histories == {0: b"momentum 0", 1: b"momentum 1"}
    assert (store.opened, store.closed) == (1, 1)


def test_an_answer_of_another_incarnation_is_not_saved(tmp_path: Path) -> None:
    keeper = make(tmp_path)
    keeper.begin(resumed_run(), 0.0, 0.0)
    keeper.saw(saved(0, incarnation=3))
    keeper.saw(Left(0, 4, "it died"))
    keeper.saw(Left(1, 5, "it died"))
    (done,) = written(keeper)
    assert done.problem.startswith(NO_HISTORY)
    assert only(tmp_path).workers == {}


def test_a_history_that_is_missing_is_told_and_the_rest_is_kept(tmp_path: Path) -> None:
    store = CountingStore()
    keeper = make(tmp_path, store)
    keeper.begin(resumed_run(), 0.0, 0.0)
    keeper.saw(saved(0))
    keeper.saw(saved(1, problem="no space"))
    (done,) = written(keeper)
    none, first, second = done.problem.split("; ")
    assert none.startswith(NO_HISTORY)
    assert first == "without the history of worker 1: no space"
    assert second.startswith("without the history of worker 0: ")
    assert set(only(tmp_path).workers) == {0}


def test_a_checkpoint_says_whose_histories_it_has(tmp_path: Path) -> None:
    store = CountingStore()
    put_history(store, "keys", 1, 6, b"momentum 1")
    keeper = make(tmp_path, store)
    keeper.begin(resumed_run(), 0.0, 0.0)
    keeper.saw(saved(1))
    keeper.saw(Left(0, 4, "it died"))
    (done,) = written(keeper)
    assert isinstance(done, Checkpointed)
    assert done.histories == (1,)
    assert done.problem == "without the history of worker 0: it left before it had sent it"


def test_where_the_master_makes_the_updates_no_worker_has_a_history_to_miss(
    tmp_path: Path,
) -> None:
    keeper = make(tmp_path, server_history=lambda: b"master")
    coordinator = Coordinator(Synchronous(AverageDeltas()), Plan(2, 4, workers=WORKERS))
    keeper.begin(coordinator, 0.0, 0.0)
    assert [one.problem for one in written(keeper)] == [""]


def test_workers_that_do_not_answer_are_waited_for_half_a_minute(tmp_path: Path) -> None:
    keeper = make(tmp_path)
    assert keeper.deadline() == float("inf")
    keeper.begin(resumed_run(), 0.0, 100.0)
    keeper.saw(saved(0, version=7))
    assert keeper.deadline() == 100.0 + GATHER_S
    assert keeper.finished(99.9 + GATHER_S) == []
    assert keeper.deadline() == 100.0 + GATHER_S
    keeper.finished(100.0 + GATHER_S)
    keeper.close()
    assert keeper.deadline() == 0.0
    (done,) = keeper.finished(0.0)
    assert done.version == 6
    assert "without the history of worker 0: no answer within 30 s" in done.problem
    assert keeper.deadline() == float("inf")
    assert len(checkpoints_in(tmp_path)) == 1


def test_what_is_being_written_is_asked_for_again_soon(tmp_path: Path) -> None:
    written_on = threading.Event()
    keeper = make(tmp_path, fence=written_on.wait)
    keeper.begin(resumed_run(), 0.0, 0.0)
    keeper.saw(saved(0, problem="gone"))
    keeper.saw(saved(1, problem="gone"))
    assert keeper.deadline() == 0.0
    assert keeper.finished(0.0) == []
    before = time.monotonic()
    assert before < keeper.deadline() <= time.monotonic() + POLL_S
    assert not keeper.due(1e6)
    assert keeper.finished(0.0) == []
    written_on.set()
    keeper.close()
    assert len(keeper.finished(0.0)) == 1


def test_one_is_due_every_interval_but_not_before_the_last_is_done(tmp_path: Path) -> None:
    keeper = make(tmp_path)
    assert [keeper.due(now) for now in (100.0, 109.9, 110.0, 115.0, 119.9, 120.0)] == [
        False, False, True, False, False, True,
    ]  # fmt: skip
    keeper.begin(resumed_run(), 0.0, 120.0)
    assert not keeper.due(140.0)
    for worker in range(WORKERS):
        keeper.saw(Left(worker, 4 + worker, "it died"))
    assert len(written(keeper)) == 1
    assert keeper.due(140.0)


@pytest.mark.parametrize(("interval_s", "due"), [(0.0, False), (0.5, True), (1.0, True)])
def test_an_interval_of_nothing_means_only_at_the_end(
    tmp_path: Path, interval_s: float, due: bool
) -> None:
    keeper = make(tmp_path, interval_s=interval_s)
    assert [keeper.due(100.0), keeper.due(101.0)] == [False, due]


def refuse() -> None:
    raise FencedError("another master has the run")


def test_a_master_that_was_replaced_writes_none(tmp_path: Path) -> None:
    keeper = make(tmp_path, fence=refuse)
    assert keeper.keep_center(resumed_run(), 0.0) == "another master has the run"
    keeper.begin(resumed_run(), 0.0, 0.0)
    for worker in range(WORKERS):
        keeper.saw(Left(worker, 4 + worker, "it died"))
    (done,) = written(keeper)
    assert (done.bytes, done.problem) == (0, "another master has the run")
    assert checkpoints_in(tmp_path) == []


def test_a_bug_of_the_writing_thread_is_told_with_its_name(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("ours")

    keeper = make(tmp_path, fence=fail)
    keeper.begin(resumed_run(), 0.0, 0.0)
    for worker in range(WORKERS):
        keeper.saw(Left(worker, 4 + worker, "it died"))
    (done,) = written(keeper)
    assert (done.bytes, done.problem) == (0, "ValueError: ours")


def test_without_a_store_the_center_alone_is_kept_at_once(tmp_path: Path) -> None:
    store = CountingStore()
    keeper = make(tmp_path, store, seconds_before=1.0)
    assert keeper.keep_center(resumed_run(), 2.0) == ""
    found = only(tmp_path)
    assert (found.counters.version, found.counters.seconds, found.workers) == (6, 3.0, {})
    assert keeper.deadline() == float("inf")
    keeper.close()
    assert (store.opened, store.closed) == (0, 0)


# ---------------------------------------------------------------- snapshots


@dataclass
class Taken:
    """A snapshot that keeps the histories that it is written with."""

    iteration: int = 7
    wants_histories: bool = True
    problem: str = ""
    may_write: Callable[[], object] = lambda: None
    wrote: list[tuple[bytes, int]] = field(default_factory=list)

    def write(self, histories: Sequence[tuple[bytes, int]]) -> str:
        self.may_write()
        self.wrote += histories
        return self.problem


def test_a_snapshot_and_a_checkpoint_of_one_version_share_the_histories(tmp_path: Path) -> None:
    store, run, taken = CountingStore(), resumed_run(), Taken()
    keeper = make(tmp_path, store)
    for worker in range(WORKERS):
        put_history(store, "keys", worker, 6, b"momentum %d" % worker)
    assert keeper.begin(run, 0.0, 0.0) == [SaveState(0, 4, 6), SaveState(1, 5, 6)]
    assert keeper.begin_snapshot(run, taken, 0.0) == []
    for worker in range(WORKERS):
        keeper.saw(saved(worker))
    snapshot, checkpoint = written(keeper)
    assert snapshot == Snapshotted(6, 7)
    assert (checkpoint.version, checkpoint.problem) == (6, "")
    assert taken.wrote == [(b"momentum 0", 5), (b"momentum 1", 5)]
    assert only(tmp_path).histories == {0: b"momentum 0", 1: b"momentum 1"}


def test_a_newer_checkpoint_does_not_end_a_snapshot(tmp_path: Path) -> None:
    run, taken = resumed_run(), Taken()
    keeper = make(tmp_path)
    keeper.begin(run, 0.0, 0.0)
    keeper.begin_snapshot(run, taken, 0.0)
    run.version = 8
    keeper.begin(run, 0.0, 0.0)
    for worker in range(WORKERS):
        keeper.saw(Left(worker, 4 + worker, "it died"))
    done = written(keeper)
    assert [(type(one).__name__, one.version) for one in done] == [
        ("Snapshotted", 6),
        ("Checkpointed", 8),
    ]


def test_a_snapshot_of_the_servers_history_asks_no_worker(tmp_path: Path) -> None:
    keeper, now = make(tmp_path), time.monotonic()
    assert keeper.begin_snapshot(resumed_run(), Taken(wants_histories=False), now) == []
    assert written(keeper) == [Snapshotted(6, 7)]


def test_a_snapshot_without_any_history_says_why(tmp_path: Path) -> None:
    keeper = make(tmp_path)
    keeper.begin_snapshot(resumed_run(), Taken(problem="no file"), 0.0)
    keeper.saw(saved(0, problem="no space"))
    keeper.saw(saved(1, problem="no room"))
    (done,) = written(keeper)
    first, second = (
        f"without the history of worker {n}: no {w}" for n, w in ((0, "space"), (1, "room"))
    )
    assert done == Snapshotted(6, 7, f"no file ({first}; {second})")


def test_a_slow_disk_holds_training_before_the_weights_of_many_snapshots_fill_the_memory(
    tmp_path: Path,
) -> None:
    """The first waits for workers that do not answer: it is written without them to make room."""
    may_write, keeper, run = threading.Event(), make(tmp_path), resumed_run()
    slow = [Taken(number, may_write=may_write.wait) for number in range(MOST_WAITING + 1)]
    for taken in slow[:-1]:
        run.version += 1
        keeper.begin_snapshot(run, taken, 0.0)
    assert keeper.finished(0.0) == []
    threading.Timer(0.1, may_write.set).start()
    keeper.begin_snapshot(run, slow[-1], 0.0)
    assert may_write.is_set()
    assert [one.version for one in keeper.finished(0.0)] == [7]
    keeper.close()


# ---------------------------------------------------------------- a disk that hangs

LATE = WRITE_S + 1.0  # seconds for a vector of eight values


@dataclass
class Disk:
    """Hangs until it is `back`; `now` is the driver's clock."""

    back: threading.Event = field(default_factory=threading.Event)
    now: float = 0.0

    def keeper(self, folder: Path, **change: object) -> CheckpointWriter:
        return make(folder, fence=self.back.wait, clock=lambda: self.now, **change)


def begin(keeper: CheckpointWriter, run: Coordinator, now: float) -> None:
    """A checkpoint that no worker adds to."""
    for command in keeper.begin(run, 0.0, now):
        keeper.saw(Left(command.worker, command.incarnation, "it died"))


def test_a_checkpoint_on_a_disk_that_hangs_is_told_with_its_folder(tmp_path: Path) -> None:
    disk, run = Disk(), resumed_run()
    keeper = disk.keeper(tmp_path)
    begin(keeper, run, 0.0)
    assert keeper.finished(0.0) == []
    assert keeper.finished(WRITE_S - 1.0) == []
    assert keeper.hangs == ""
    (told,) = keeper.finished(LATE)
    assert (told.version, told.problem) == (6, keeper.hangs)
    assert keeper.hangs.startswith(f"{tmp_path} has not answered for 120 s: its disk hangs")
    disk.back.set()
    keeper.close()


def test_a_run_whose_disk_hangs_waits_for_nothing_more_and_copies_no_more_weights(
    tmp_path: Path,
) -> None:
    """The driver asks for as long as anything has a deadline: at the end that was for ever."""
    disk, run = Disk(), resumed_run()
    keeper = disk.keeper(tmp_path, interval_s=1.0)
    begin(keeper, run, 0.0)
    keeper.finished(0.0)
    keeper.finished(LATE)
    assert keeper.deadline() == float("inf")
    assert not keeper.due(LATE)
    assert not keeper.due(LATE + 1e6)
    run.version = 8
    assert keeper.begin(run, 0.0, LATE) == []
    assert keeper.begin_snapshot(run, Taken(), LATE) == []
    assert keeper.deadline() == 0.0
    checkpoint, snapshot = keeper.finished(LATE)
    assert (checkpoint.version, checkpoint.problem) == (8, keeper.hangs)
    assert snapshot == Snapshotted(8, 7, f"no snapshot at iteration 7: {keeper.hangs}")
    assert keeper.deadline() == float("inf")
    assert keeper.keep_center(run, 0.0) == keeper.hangs
    disk.back.set()
    keeper.close()


def test_the_last_center_waits_for_what_is_written_before_it(tmp_path: Path) -> None:
    disk, run = Disk(), resumed_run()
    keeper = disk.keeper(tmp_path)
    begin(keeper, run, 0.0)
    keeper.finished(0.0)
    run.version = 8
    threading.Timer(0.2, disk.back.set).start()
    assert keeper.keep_center(run, 0.0) == ""
    assert [path.name[7:19] for path in checkpoints_in(tmp_path)] == [f"{8:012d}", f"{6:012d}"]
    keeper.close()


def test_what_waits_behind_a_write_that_hangs_is_told_too(tmp_path: Path) -> None:
    disk, run = Disk(), resumed_run()
    keeper = disk.keeper(tmp_path)
    keeper.begin_snapshot(run, Taken(may_write=disk.back.wait, wants_histories=False), 0.0)
    begin(keeper, run, 1.0)
    keeper.finished(1.0)
    run.version = 9
    keeper.begin_snapshot(run, Taken(), 2.0)  # waits for its workers yet
    told = keeper.finished(LATE)
    assert [(type(one).__name__, one.version) for one in told] == [
        ("Snapshotted", 6),
        ("Checkpointed", 6),
        ("Snapshotted", 9),
    ]
    assert all(keeper.hangs in one.problem for one in told)
    assert keeper.deadline() == float("inf")
    disk.back.set()
    keeper.close()


def test_a_disk_that_is_back_has_the_checkpoint_and_gets_the_next(tmp_path: Path) -> None:
    disk, run = Disk(), resumed_run()
    keeper = disk.keeper(tmp_path, interval_s=1.0)
    begin(keeper, run, 0.0)
    keeper.finished(0.0)
    keeper.finished(LATE)
    disk.back.set()
    deadline = time.monotonic() + 10.0 * how_loaded()
    found: list[Written] = []
    while not found and time.monotonic() < deadline:
        found = keeper.finished(LATE)
    assert [(one.version, one.bytes > 0) for one in checkpoints_of(found)] == [(6, True)]
    assert keeper.hangs == ""
    assert keeper.due(LATE) is False
    assert keeper.due(LATE + 1.0)
    begin(keeper, run, LATE + 1.0)
    keeper.finished(LATE + 1.0)
    keeper.close()
    assert [one.bytes > 0 for one in checkpoints_of(keeper.finished(LATE + 1.0))] == [True]


def checkpoints_of(written: list[Written]) -> list[Checkpointed]:
    return [one for one in written if isinstance(one, Checkpointed)]


def test_many_snapshots_wait_for_a_disk_that_hangs_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speedo.master.checkpoint_writer.WRITE_S", 0.2)
    back, keeper, run = threading.Event(), make(tmp_path), resumed_run()
    for number in range(MOST_WAITING + 1):
        taken = Taken(number, wants_histories=False, may_write=back.wait)
        keeper.begin_snapshot(run, taken, time.monotonic())
    told = keeper.finished(time.monotonic())
    assert [one.iteration for one in told] == [*range(MOST_WAITING + 1)]
    assert all(keeper.hangs in one.problem for one in told)
    back.set()
    keeper.close()


@pytest.mark.processes
def test_a_process_ends_though_its_checkpoint_hangs(tmp_path: Path) -> None:
    """Python's executor is waited for when the process ends."""
    program = (
        "import threading\n"
        "from pathlib import Path\n"
        "from speedo.master import checkpoint_writer\n"
        "from tests.master.test_checkpoint_writer import begin, make, resumed_run\n"
        "checkpoint_writer.WRITE_S = checkpoint_writer.CLOSE_S = 0.1\n"
        f"keeper = make(Path({str(tmp_path)!r}), fence=threading.Event().wait)\n"
        "begin(keeper, resumed_run(), 0.0)\n"
        "keeper.finished(0.0)\n"
        "print([one.problem for one in keeper.finished(1.0)])\n"
        "keeper.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path} has not answered for 0 s" in done.stdout
