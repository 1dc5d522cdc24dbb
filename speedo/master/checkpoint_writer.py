"""Writes checkpoints while training continues.

`begin` copies the center and asks every worker for its solver history. When all have answered, or the time limit is
over, a thread fetches the histories from the store and writes the file. Training waits only for the copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from speedo.errors import PayloadError, SpeedoError, StoreError
from speedo.master.center import RunCenter
from speedo.master.coordinator import Coordinator
from speedo.messages import Checkpointed, Left, SaveState, StateSaved
from speedo.run_dir.checkpoint_file import (
    Checkpoint,
    Counters,
    Progress,
    WorkerState,
    write_checkpoint,
)
from speedo.storage.base import Store
from speedo.vectors.transfer import take_history

GATHER_S: Final = 30.0  # workers that have not answered by then keep their history to themselves
POLL_S: Final = 0.05


@dataclass
class _Gathering:
    """A checkpoint that waits for the solver histories of the workers in `awaited`."""

    checkpoint: Checkpoint
    awaited: set[tuple[int, int]]
    deadline: float
    saved: dict[int, WorkerState] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass
class CheckpointWriter:
    """Implements `speedo.master.driver.Checkpoints`. One every `interval_s` seconds of training;
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
    _gathering: _Gathering | None = None
    _writing: list[tuple[Counters, Future[tuple[int, str]]]] = field(default_factory=list)
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
        members = {(slot, one.incarnation) for slot, one in coordinator.members.items()}
        self._gathering = _Gathering(checkpoint, members, now + GATHER_S)
        return [SaveState(slot, incarnation, version) for slot, incarnation in sorted(members)]

    def saw(self, event: StateSaved | Left) -> None:
        """A worker has answered, or has left."""
        gathering = self._gathering
        if gathering is None:
            return
        if isinstance(event, StateSaved):
            if event.version != gathering.checkpoint.counters.version:
                return
            if event.problem:
                gathering.problems.append(_without(event.worker, event.problem))
            elif (event.worker, event.incarnation) in gathering.awaited:
                shard = (event.rank, event.count, event.batch_size, event.batches)
                gathering.saved[event.worker] = WorkerState(*shard, *self.data_of(event.worker))
        gathering.awaited.discard((event.worker, event.incarnation))

    def finished(self, now: float) -> list[Checkpointed]:
        """Pass complete checkpoints to the writing thread, and return those that were written."""
        gathering = self._gathering
        if gathering is not None and (not gathering.awaited or now >= gathering.deadline):
            self._gathering = None
            checkpoint = replace(gathering.checkpoint, workers=gathering.saved)
            self._writing.append(
                (
                    checkpoint.counters,
                    self._pool.submit(self._write, checkpoint, gathering.problems),
                )
            )
        done = [entry for entry in self._writing if entry[1].done()]
        self._writing = [entry for entry in self._writing if not entry[1].done()]
        return [_outcome(counters, future) for counters, future in done]

    def deadline(self) -> float:
        """See `speedo.master.driver.Checkpoints`."""
        if self._writing:
            return 0.0 if self._writing[0][1].done() else time.monotonic() + POLL_S
        if self._gathering is None:
            return float("inf")
        return self._gathering.deadline if self._gathering.awaited else 0.0

    def keep_center(self, coordinator: Coordinator, seconds: float) -> str:
        """Write a checkpoint without the workers' histories, after the store is lost. Returns the problem, if any."""
        self.begin(coordinator, seconds, 0.0)
        assert self._gathering is not None
        checkpoint, self._gathering = self._gathering.checkpoint, None
        return self._write(checkpoint)[1]

    def close(self) -> None:
        """Wait until the writing thread is done."""
        self._pool.shutdown(wait=True)
        if self._store is not None:
            self._store.close()

    def _write(self, checkpoint: Checkpoint, known: Sequence[str] = ()) -> tuple[int, str]:
        """In the thread: fetch the histories and write; returns the bytes of the file, and the problem."""
        problems = list(known)
        histories: dict[int, bytes] = {}
        version = checkpoint.counters.version
        for slot in checkpoint.workers:
            try:
                if self._store is None:
                    self._store = self.open_store()
                histories[slot] = take_history(self._store, self.keyspace, slot, version)
            except (StoreError, PayloadError) as error:
                problems.append(_without(slot, error))
        try:
            self.fence()
            path = write_checkpoint(self.folder, replace(checkpoint, histories=histories))
        except SpeedoError as error:
            return 0, str(error)
        return path.stat().st_size, "; ".join(problems)


def _progress(coordinator: Coordinator) -> Progress:
    stopping = coordinator.stopping
    return Progress(*coordinator.place, stopping.best, stopping.best_iteration, stopping.since_best)


def _without(worker: int, why: object) -> str:
    return f"without the history of worker {worker}: {why}"


def _outcome(counters: Counters, future: Future[tuple[int, str]]) -> Checkpointed:
    error = future.exception()
    size, problem = (0, f"{type(error).__name__}: {error}") if error else future.result()
    return Checkpointed(counters.version, counters.iteration, counters.seconds, size, problem)
