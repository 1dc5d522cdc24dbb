"""Writes checkpoints and snapshots while training continues.

`begin` copies the center and asks every worker for its solver history. When all have answered, or the time limit is
over, a thread fetches the histories from the store and writes the files. Training waits only for the copy. A checkpoint
and a snapshot of one version share the histories.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from speedo.errors import PayloadError, SpeedoError, StoreError
from speedo.master.center import RunCenter
from speedo.master.checkpoints import TakenSnapshot
from speedo.master.coordinator import Coordinator
from speedo.messages import Checkpointed, Left, SaveState, Snapshotted, StateSaved
from speedo.run_dir.checkpoint_file import (
    Checkpoint,
    Counters,
    Progress,
    TurnLengths,
    WorkerState,
    write_checkpoint,
)
from speedo.sgd_modes.turn_length import AdaptiveLength
from speedo.storage.base import Store
from speedo.vectors.transfer import take_history

GATHER_S: Final = 30.0  # workers that have not answered by then keep their history to themselves
POLL_S: Final = 0.05
NO_HISTORY: Final = "the checkpoint has no worker's solver history (momentum and the like)"
MOST_WAITING: Final = 4  # snapshots; the weights of each are in memory

Written = Checkpointed | Snapshotted


@dataclass
class _Gathering:
    """What waits for the solver histories of the workers in `awaited`: a checkpoint, a snapshot, or both."""

    version: int
    awaited: set[tuple[int, int]]
    deadline: float
    saved: dict[int, WorkerState] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    snapshot: TakenSnapshot | None = None


@dataclass
class CheckpointWriter:
    """Implements `speedo.master.checkpoints.Checkpoints`. One every `interval_s` seconds of training;
    0 means only at the end.

    `open_store` makes a connection for the writing thread; `fence` raises `FencedError` if another master has
    taken the run over; `server_history` is the master's own solver history, `dropped` counts results by fate;
    `data_of` gives `WorkerState.share` and `WorkerState.data` of a slot.
    """

    folder: Path
    run: str
    keyspace: str
    mode: str
    center: RunCenter
    open_store: Callable[[], Store]
    fence: Callable[[], None]
    interval_s: float
    epoch: int = 0
    seconds_before: float = 0.0
    server_history: Callable[[], bytes] = lambda: b""
    dropped: Callable[[], Mapping[str, int]] = dict
    data_of: Callable[[int], tuple[str, str]] = lambda slot: ("shard", "")
    _gathering: dict[int, _Gathering] = field(default_factory=dict)  # by version, oldest first
    _writing: list[tuple[_Gathering, Future[list[Written]]]] = field(default_factory=list)
    _next: float | None = None

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "checkpoints")
        self._store: Store | None = None

    def due(self, now: float) -> bool:
        """True every `interval_s`, unless a checkpoint is being written."""
        if self._next is None:
            self._next = now + self.interval_s
        if self.interval_s <= 0 or now < self._next or self._gathering or self._writing:
            return False
        self._next = now + self.interval_s
        return True

    def begin(self, coordinator: Coordinator, seconds: float, now: float) -> list[SaveState]:
        """Copy the center, and ask every member for its history; an unfinished checkpoint is abandoned."""
        version = coordinator.version
        counters = Counters(
            self.run,
            self.epoch,
            self.mode,
            version,
            coordinator.iteration,
            coordinator.samples,
            coordinator.received,
            self.seconds_before + seconds,
            self.center.layout.digest,
            dict(self.dropped()),
            _progress(coordinator),
        )
        checkpoint = Checkpoint(counters, self.center.vector.copy(), self.server_history())
        for version, earlier in list(self._gathering.items()):
            earlier.checkpoint = None
            if earlier.snapshot is None:
                del self._gathering[version]
        gathering, asked = self._gather(coordinator, now)
        gathering.checkpoint = checkpoint
        return asked

    def begin_snapshot(
        self, coordinator: Coordinator, snapshot: TakenSnapshot, now: float
    ) -> list[SaveState]:
        """See `speedo.master.checkpoints.Checkpoints`. Waits for the disk if many snapshots wait to be written."""
        waiting = [one for one in self._gathering.values() if one.snapshot is not None]
        if len(waiting) + len(self._writing) >= MOST_WAITING:
            for one in waiting[:1]:  # it is written with what there is
                self._pass_on(self._gathering.pop(one.version))
            wait([self._writing[0][1]])
        if not snapshot.wants_histories:
            self._pass_on(_Gathering(coordinator.version, set(), now, snapshot=snapshot))
            return []
        gathering, asked = self._gather(coordinator, now)
        gathering.snapshot = snapshot
        return asked

    def _gather(self, coordinator: Coordinator, now: float) -> tuple[_Gathering, list[SaveState]]:
        """The gathering of the present version, and what the workers must do for it."""
        version = coordinator.version
        found = self._gathering.get(version)
        if found is not None:
            return found, []
        members = {(slot, one.incarnation) for slot, one in coordinator.members.items()}
        found = self._gathering[version] = _Gathering(version, members, now + GATHER_S)
        return found, [SaveState(slot, own, version) for slot, own in sorted(members)]

    def saw(self, event: StateSaved | Left) -> None:
        """A worker has answered, or has left."""
        for gathering in self._gathering.values():
            if isinstance(event, StateSaved):
                if event.version != gathering.version:
                    continue
                if event.problem:
                    gathering.problems.append(_without(event.worker, event.problem))
                elif (event.worker, event.incarnation) in gathering.awaited:
                    shard = (event.rank, event.count, event.batch_size, event.batches)
                    gathering.saved[event.worker] = WorkerState(*shard, *self.data_of(event.worker))
            elif (event.worker, event.incarnation) in gathering.awaited:
                gathering.problems.append(_without(event.worker, "it left before it had sent it"))
            gathering.awaited.discard((event.worker, event.incarnation))

    def finished(self, now: float) -> list[Written]:
        """Pass what is complete to the writing thread, and return what was written."""
        for version, gathering in list(self._gathering.items()):
            if not gathering.awaited or now >= gathering.deadline:
                gathering.problems += [
                    _without(worker, f"no answer within {GATHER_S:.0f} s")
                    for worker, _ in sorted(gathering.awaited)
                ]
                self._pass_on(self._gathering.pop(version))
        found: list[Written] = []
        while self._writing and self._writing[0][1].done():  # one thread writes: in order
            found += _outcome(*self._writing.pop(0))
        return found

    def _pass_on(self, gathering: _Gathering) -> None:
        self._writing.append((gathering, self._pool.submit(self._write, gathering)))

    def deadline(self) -> float:
        """See `speedo.master.checkpoints.Checkpoints`."""
        if self._writing:
            return 0.0 if self._writing[0][1].done() else time.monotonic() + POLL_S
        waits = (one.deadline if one.awaited else 0.0 for one in self._gathering.values())
        return min(waits, default=float("inf"))

    def keep_center(self, coordinator: Coordinator, seconds: float) -> str:
        """Write a checkpoint without the workers' histories, after the store is lost; why there is none, if so."""
        self.begin(coordinator, seconds, 0.0)
        checkpoint = self._gathering.pop(coordinator.version).checkpoint
        assert checkpoint is not None
        done = self._write_checkpoint(checkpoint, {}, ())
        return "" if done.bytes else done.problem

    def close(self) -> None:
        """Wait until the writing thread is done."""
        self._pool.shutdown(wait=True)
        if self._store is not None:
            self._store.close()

    def _write(self, gathering: _Gathering) -> list[Written]:
        """In the thread: fetch the histories and write."""
        problems, saved = gathering.problems, gathering.saved
        histories: dict[int, bytes] = {}
        for slot in saved:
            try:
                if self._store is None:
                    self._store = self.open_store()
                histories[slot] = take_history(self._store, self.keyspace, slot, gathering.version)
            except (StoreError, PayloadError) as error:
                problems.append(_without(slot, error))
        done: list[Written] = []
        if gathering.snapshot is not None:
            snapshot = gathering.snapshot
            sized = [(history, saved[slot].batch_size) for slot, history in histories.items()]
            problem = snapshot.write(sized)
            why = "; ".join(problems) if problem and not histories else ""
            whole = f"{problem} ({why})" if why else problem
            done.append(Snapshotted(gathering.version, snapshot.iteration, whole))
        if gathering.checkpoint is not None:
            checkpoint = replace(gathering.checkpoint, workers=saved)
            done.append(self._write_checkpoint(checkpoint, histories, problems))
        return done

    def _write_checkpoint(
        self, checkpoint: Checkpoint, histories: Mapping[int, bytes], problems: Sequence[str]
    ) -> Checkpointed:
        try:
            self.fence()
            path = write_checkpoint(self.folder, replace(checkpoint, histories=histories))
        except SpeedoError as error:
            return _checkpointed(checkpoint, 0, str(error))
        told = list(problems)
        if not (histories or checkpoint.master_history):
            told.insert(0, f"{NO_HISTORY}: it begins at 0 if the run is resumed from there")
        return _checkpointed(checkpoint, path.stat().st_size, "; ".join(told), sorted(histories))


def _progress(coordinator: Coordinator) -> Progress:
    stopping, length = coordinator.stopping, coordinator.strategy.local_steps
    return Progress(
        *coordinator.place,
        stopping.best,
        stopping.best_iteration,
        stopping.since_best,
        TurnLengths(*length.state) if isinstance(length, AdaptiveLength) else None,
    )


def _without(worker: int, why: object) -> str:
    return f"without the history of worker {worker}: {why}"


def _checkpointed(
    checkpoint: Checkpoint, size: int, problem: str, histories: Sequence[int] = ()
) -> Checkpointed:
    counters = checkpoint.counters
    return Checkpointed(
        counters.version, counters.iteration, counters.seconds, size, problem, tuple(histories)
    )


def _outcome(gathering: _Gathering, future: Future[list[Written]]) -> list[Written]:
    error = future.exception()
    if error is None:
        return future.result()
    problem, done = f"{type(error).__name__}: {error}", list[Written]()
    if gathering.snapshot is not None:
        iteration = gathering.snapshot.iteration
        told = f"no whole snapshot at iteration {iteration}: {problem}"
        done.append(Snapshotted(gathering.version, iteration, told))
    if gathering.checkpoint is not None:
        done.append(_checkpointed(gathering.checkpoint, 0, problem))
    return done
