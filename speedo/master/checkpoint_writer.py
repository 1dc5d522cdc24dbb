"""Writes checkpoints and snapshots while training continues.

`begin` copies the center and asks every worker for its solver history. When all have answered, or the time limit is
over, a thread fetches the histories from the store and writes the files. Training waits only for the copy. A checkpoint
and a snapshot of one version share the histories.

Each wait for the disk has a time limit. A file that is not written in time is reported as a problem that names the
folder. Training continues; while the disk hangs, no other file is begun, and each skipped one is reported. When the
disk answers again, the file that hung is reported as written, and the next checkpoint is due as usual.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from speedo.errors import PayloadError, SpeedoError, StoreError
from speedo.exchange.transfer import take_history
from speedo.master.center import RunCenter
from speedo.master.checkpoints import TakenSnapshot
from speedo.master.coordinator import Coordinator
from speedo.messages import Checkpointed, Left, SaveState, Snapshotted, StateSaved
from speedo.run_dir.checkpoint_file import (
    Checkpoint,
    Counters,
    TrainingProgress,
    TurnLengths,
    WorkerState,
    write_checkpoint,
)
from speedo.sgd_modes.turn_length import as_turn_length
from speedo.storage.base import Store
from speedo.system.daemon_thread import DaemonThread

GATHER_S: Final = 30.0  # workers that have not answered by then keep their history to themselves
POLL_S: Final = 0.05
NO_HISTORY: Final = "the checkpoint has no worker's solver history (momentum and the like)"
MOST_WAITING: Final = 4  # snapshots; the weights of each are in memory
WRITE_S: Final = 120.0  # for a file to be on the disk
SLOWEST_BYTES_S: Final = 2e6  # and so much more time for a large one
CLOSE_S: Final = 10.0  # at the end, for what was reported as hung

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
class _Writing:
    """What the thread writes, or is to write next; each has its time from the end of the one before it."""

    gathering: _Gathering
    future: Future[list[Written]]
    limit_s: float
    deadline: float


@dataclass
class CheckpointWriter:
    """Implements `speedo.master.checkpoints.Checkpoints`. One every `interval_s` seconds of training;
    0 means only at the end.

    `open_store` makes a connection for the writing thread; `fence` raises `FencedError` if another master has
    taken the run over; `server_history` is the master's own solver history, `dropped` counts results by fate;
    `data_of` gives `WorkerState.share` and `WorkerState.data` of a slot, `script_state` is `Checkpoint.script`, and
    `records` is `Checkpoint.records`.
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
    script_state: Callable[[], bytes] = lambda: b""
    records: Callable[[], bytes] = lambda: b""
    clock: Callable[[], float] = time.monotonic  # the driver's
    _gathering: dict[int, _Gathering] = field(default_factory=dict)  # by version, oldest first
    _writing: list[_Writing] = field(default_factory=list)  # oldest first
    # Reported as a problem; the first is under way
    _hung: list[_Writing] = field(default_factory=list)
    _untold: list[Written] = field(default_factory=list)
    _next: float | None = None
    _wanted: threading.Event = field(default_factory=threading.Event)  # one out of turn
    _kept: threading.Event = field(default_factory=threading.Event)  # since that was wanted
    _done: set[tuple[int, int]] = field(default_factory=set)  # workers whose script has ended

    def __post_init__(self) -> None:
        self._thread: DaemonThread[list[Written]] = DaemonThread("checkpoints")
        self._store: Store | None = None

    @property
    def hangs(self) -> str:
        """A sentence on the disk, if it has not answered in time and does not now; empty if all is well."""
        return self._is_silent(self._hung[0].limit_s) if self._hung else ""

    def due(self, now: float) -> bool:
        """True every `interval_s`, unless a checkpoint is being written."""
        if self._next is None:
            self._next = now + self.interval_s
        busy = self._gathering or self._writing or self._hung
        is_time = self.interval_s > 0 and now >= self._next
        if busy or not (is_time or self._wanted.is_set()):
            return False
        self._wanted.clear()
        self._next = now + self.interval_s
        return True

    def keep_soon(self, patience_s: float) -> bool:
        """From another thread: keep a checkpoint after the next merge; whether that is done in time."""
        self._kept.clear()
        self._wanted.set()
        return self._kept.wait(patience_s)

    def begin(
        self, coordinator: Coordinator, seconds: float, now: float, within_s: float = math.inf
    ) -> list[SaveState]:
        """Copy the center, and ask every member for its history; an unfinished checkpoint is abandoned."""
        if self._hung:  # it would only wait behind what hangs, with a copy of the weights
            place = (coordinator.version, coordinator.iteration, self.seconds_before + seconds)
            self._untold.append(Checkpointed(*place, 0, self.hangs))
            return []
        checkpoint = self._taken(coordinator, seconds)
        for version, earlier in list(self._gathering.items()):
            earlier.checkpoint = None
            if earlier.snapshot is None:
                del self._gathering[version]
        gathering, asked = self._gather(coordinator, now)
        gathering.checkpoint = checkpoint
        gathering.deadline = min(gathering.deadline, now + within_s)
        return asked

    def counters(self, coordinator: Coordinator, seconds: float) -> Counters:
        """Those of the present version, after these `seconds` of training."""
        return Counters(
            self.run,
            self.epoch,
            self.mode,
            coordinator.version,
            coordinator.iteration,
            coordinator.samples,
            coordinator.received,
            self.seconds_before + seconds,
            self.center.layout.digest,
            dict(self.dropped()),
            _progress(coordinator),
        )

    def _taken(self, coordinator: Coordinator, seconds: float) -> Checkpoint:
        """What the master has of the present version."""
        counters = self.counters(coordinator, seconds)
        center, own = self.center.vector.copy(), self.server_history()
        rule = self.center.state.pack()
        script, records = self.script_state(), self.records()
        return Checkpoint(counters, center, own, rule_state=rule, script=script, records=records)

    def begin_snapshot(
        self, coordinator: Coordinator, snapshot: TakenSnapshot, now: float
    ) -> list[SaveState]:
        """See `speedo.master.checkpoints.Checkpoints`. Waits for the disk if many snapshots wait to be written."""
        waiting = [one for one in self._gathering.values() if one.snapshot is not None]
        if len(waiting) + len(self._writing) >= MOST_WAITING:
            for one in waiting[:1]:  # it is written with what there is
                self._pass_on(self._gathering.pop(one.version), now)
            first = self._writing[0]
            wait([first.future], max(0.0, first.deadline - now))
            self._untold = self.finished(self.clock())
        if self._hung:
            problem = f"no snapshot at iteration {snapshot.iteration}: {self.hangs}"
            self._untold.append(Snapshotted(coordinator.version, snapshot.iteration, problem))
            return []
        if not snapshot.wants_histories:
            self._pass_on(_Gathering(coordinator.version, set(), now, snapshot=snapshot), now)
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
        members = {
            (who, one.incarnation) for who, one in coordinator.members.items() if not one.rests
        }
        members |= self._done
        found = self._gathering[version] = _Gathering(version, members, now + GATHER_S)
        return found, [SaveState(slot, own, version) for slot, own in sorted(members)]

    def saw(self, event: StateSaved | Left) -> None:
        """A worker has answered, or has left: one that is done keeps its state until the run is over."""
        if isinstance(event, Left) and event.done:
            self._done.add((event.worker, event.incarnation))
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
        found, self._untold = self._untold, []
        while self._hung and self._hung[0].future.done():  # the disk is back
            found += _outcome(self._hung.pop(0))
        for version, gathering in list(self._gathering.items()):
            if not gathering.awaited or now >= gathering.deadline:
                gathering.problems += [
                    _without(worker, f"no answer within {GATHER_S:.0f} s")
                    for worker, _ in sorted(gathering.awaited)
                ]
                complete = self._gathering.pop(version)
                if self._hung:
                    found += _failed(complete, self.hangs)
                else:
                    self._pass_on(complete, now)
        while self._writing:  # one thread writes: in order
            first = self._writing[0]
            if first.future.done():
                found += _outcome(self._writing.pop(0))
                if self._writing:
                    self._writing[0].deadline = now + self._writing[0].limit_s
            elif now >= first.deadline:  # those behind it wait for the same disk
                self._hung, self._writing = self._writing, []
                for one in self._hung:
                    found += _failed(one.gathering, self.hangs)
            else:
                break
        if any(isinstance(one, Checkpointed) for one in found):
            self._kept.set()
        return found

    def _pass_on(self, gathering: _Gathering, now: float) -> None:
        limit_s = self._limit_of(gathering)
        future = self._thread.submit(partial(self._write, gathering))
        self._writing.append(_Writing(gathering, future, limit_s, now + limit_s))

    def _limit_of(self, gathering: _Gathering) -> float:
        """Seconds to write a center, and for each worker a history of up to two vectors."""
        vectors = 2 * (len(gathering.saved) + 2)
        return WRITE_S + vectors * self.center.layout.nbytes / SLOWEST_BYTES_S

    def _is_silent(self, seconds: float) -> str:
        return (
            f"{self.folder} has not answered for {seconds:.0f} s: its disk hangs; look at the disk or the connection "
            "to it"
        )

    def deadline(self) -> float:
        if self._untold:
            return 0.0
        if self._writing:
            return 0.0 if self._writing[0].future.done() else self.clock() + POLL_S
        waits = (one.deadline if one.awaited else 0.0 for one in self._gathering.values())
        return min(waits, default=float("inf"))

    def keep_center(self, coordinator: Coordinator, seconds: float) -> str:
        """Write a checkpoint without the workers' histories, after the store is lost; why there is none, if so."""
        if self._hung:
            return self.hangs
        checkpoint = self._taken(coordinator, seconds)
        gathering = _Gathering(coordinator.version, set(), 0.0, checkpoint=checkpoint)
        limit_s = self._limit_of(gathering)
        future = self._thread.submit(partial(self._write, gathering))
        if not wait([future], limit_s + sum(one.limit_s for one in self._writing)).done:
            return self._is_silent(limit_s)
        done = _outcome(_Writing(gathering, future, 0.0, 0.0))[-1]
        return "" if isinstance(done, Checkpointed) and done.bytes else done.problem

    def close(self) -> None:
        """Wait until the writing thread is done; not for what hangs, whose thread ends with the process."""
        left = sum(one.limit_s for one in self._writing)
        if (
            self._thread.close(CLOSE_S if self._hung else left + CLOSE_S)
            and self._store is not None
        ):
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


def _progress(coordinator: Coordinator) -> TrainingProgress:
    stopping = coordinator.stopping
    turns = as_turn_length(coordinator.strategy.local_steps).state
    return TrainingProgress(
        *coordinator.place,
        stopping.best,
        stopping.best_iteration,
        stopping.since_best,
        None if turns is None else TurnLengths(*turns),
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


def _outcome(writing: _Writing) -> list[Written]:
    error = writing.future.exception()
    if error is None:
        return writing.future.result()
    return _failed(writing.gathering, f"{type(error).__name__}: {error}")


def _failed(gathering: _Gathering, problem: str) -> list[Written]:
    done = list[Written]()
    if gathering.snapshot is not None:
        iteration = gathering.snapshot.iteration
        told = f"no whole snapshot at iteration {iteration}: {problem}"
        done.append(Snapshotted(gathering.version, iteration, told))
    if gathering.checkpoint is not None:
        done.append(_checkpointed(gathering.checkpoint, 0, problem))
    return done
