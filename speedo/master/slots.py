"""The worker slots of a run: who holds each, how often each was assigned, and its shard."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from speedo.engines.solver.holding import Holding
from speedo.master.sharding import Shard, Sharding, own_shards
from speedo.messages import Divided
from speedo.system.bounds import DataShare

if TYPE_CHECKING:  # workers import this file, and need not load what reads checkpoints
    from speedo.run_dir.checkpoint_file import WorkerState


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server's Redis is reached, by a `url` with a password; `ca` vouches for it where it speaks TLS.

    Processes on `machine` (`speedo.run.open_store.this_machine`) may take its `socket`.
    """

    url: str = field(repr=False)
    ca: str = field(default="", repr=False)
    machine: str = ""
    socket: str = ""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A worker's place: its slot, how often that slot was assigned, its shard and its batch.

    It reads shard `rank` of `count` in the way of `share`, and skips `skip` batches of it before its first turn.
    `history` is the version of the checkpoint whose solver history it restores, if any. `redis_url` is for this worker
    alone, and holds its password; so do the URLs of `servers`, those that have the center, in the order of their
    ranges.
    """

    worker: int
    incarnation: int
    rank: int
    count: int
    batch_size: int
    skip: int = 0
    history: int | None = None
    redis_url: str = field(default="", repr=False, compare=False)
    servers: tuple[ServerAddress, ...] = field(default=(), repr=False, compare=False)
    share: DataShare = "shard"

    @property
    def shard(self) -> Shard:
        return Shard(self.rank, self.count, self.batch_size, self.share)

    def with_shard(self, shard: Shard, skip: int) -> Assignment:
        """The same worker with another shard, and no history to restore."""
        return replace(
            self,
            rank=shard.rank,
            count=shard.count,
            batch_size=shard.batch_size,
            skip=skip,
            history=None,
            share=shard.share,
        )


class Roster:
    """The slots and their workers; may be called from several threads.

    At first there is a shard for each of the expected workers. `samples`, where it is an argument, is what the run has
    merged: a new reader of a shard continues where the run is. `resumed` gives the data positions of the slots in the
    checkpoint of `version`; the first worker in such a slot continues exactly there, with its share of the batch.
    `records` are those that all hosts have; in `own` each host has its own, which `enlist` says.
    """

    def __init__(
        self,
        batch_sizes: tuple[int, ...],
        iter_size: int = 1,
        *,
        resumed: Mapping[int, WorkerState] | None = None,
        version: int = 0,
        share: DataShare = "shard",
        records: int | None = None,
    ) -> None:
        batch_sizes = _as_before(batch_sizes, resumed or {})
        self.sharding = Sharding(tuple(range(len(batch_sizes))), batch_sizes, share)
        self._iter_size = iter_size
        self._incarnations: dict[int, int] = {}
        self._held: dict[int, Assignment] = {}
        self._requested: dict[tuple[str, int], tuple[int, int]] = {}  # slot and incarnation
        self._moved: dict[tuple[int, int], Assignment] = {}
        self._resumed = dict(resumed or {})
        self._version = version
        self._everywhere = Holding(records)
        self._hosts: dict[str, Holding] = {}
        self._shards_of: dict[str, int] = {}  # by group, in `own`
        self._data: dict[int, Holding] = {}
        self._lock = threading.Lock()

    @property
    def share(self) -> DataShare:
        return self.sharding.share

    def enlist(self, host: str, count: int, holding: Holding) -> None:
        """Register the records of a host that will run this many workers."""
        with self._lock:
            held = {self._data[worker].group for worker in self._held if worker in self._data}
            # Otherwise its shards stay until the data is redistributed
            if holding.group not in held:
                self._shards_of[holding.group] = max(count, 1)
            self._hosts[host] = holding

    def discharge(self, host: str) -> None:
        """Unregister a host."""
        with self._lock:
            self._hosts.pop(host, None)

    def others_with(self, host: str) -> list[str]:
        """The other hosts that share this one's records in `own`: commands on the same machine."""
        with self._lock:
            mine = self._hosts.get(host)
            return sorted(
                name
                for name, one in self._hosts.items()
                if name != host and mine is not None and mine.digest and one.group == mine.group
            )

    def records(self) -> int | None:
        """The records that the hosts have together, each one's own; None where one is not known."""
        with self._lock:
            groups = {one.group: one.records for one in self._hosts.values()}
        known = [count for count in groups.values() if count is not None]
        return sum(known) if known and len(known) == len(groups) else None

    def assign(self, samples: int = 0, host: str = "", request: int | None = None) -> Assignment:
        """Assign the lowest free slot to one more worker; beyond the expected number shards are shared.

        The same `request` of a host gets the same place, for as long as that is held: its answer may be lost.
        In `own` a resumed run gives a host first the slots that had read its records.
        """
        with self._lock:
            before = None if request is None else self._requested.get((host, request))
            if before is not None and self._holds(*before):
                return self._held[before[0]]
            holding = self._hosts.get(host, Holding())
            worker = self._free_slot(holding)
            others = [place.shard for place in self._held.values()]
            shard = self.sharding.shard_for(worker, others)
            if self.share == "own":
                shard = self._own_shard(shard, holding)
            self._data[worker] = holding if self.share == "own" else self._everywhere
            place = self._place(worker, shard, samples)
            if request is not None:
                self._requested[host, request] = (worker, place.incarnation)
            return place

    def adopt(self, place: Assignment) -> bool:
        """Give the place to the worker that has had it from a former master; whether it is free, or was given to it."""
        with self._lock:
            if place.worker in self._held:
                return self._holds(place.worker, place.incarnation)
            self.seen({place.worker: place.incarnation})
            self._data[place.worker] = self._everywhere
            self._held[place.worker] = place
            return True

    def seen(self, incarnations: Mapping[int, int]) -> None:
        """There were these before; the next of each slot is a later one."""
        for worker, incarnation in incarnations.items():
            known = self._incarnations.get(worker, 0)
            self._incarnations[worker] = max(known, incarnation)

    def release(self, worker: int, incarnation: int) -> None:
        """Free the slot, unless it was assigned again."""
        with self._lock:
            if self._holds(worker, incarnation):
                del self._held[worker]
                for request, place in list(self._requested.items()):
                    if place[0] == worker:
                        del self._requested[request]

    def holds(self, worker: int, incarnation: int) -> bool:
        with self._lock:
            return self._holds(worker, incarnation)

    def now_at(self, worker: int, incarnation: int) -> Assignment | None:
        """The present place of this worker, which may have been changed; None if it has none."""
        with self._lock:
            place = self._held.get(worker)
            key = (worker, incarnation)
            while key in self._moved:
                key = (worker, self._moved[key].incarnation)
            return place if place is not None and place.incarnation == key[1] else None

    def data_of(self, worker: int) -> tuple[str, str]:
        """How the worker in this slot shares the records, and the digest of those that it alone has."""
        with self._lock:
            return self.share, self._data.get(worker, Holding()).digest

    def present(self, live: frozenset[int]) -> Sharding:
        """The sharding that these workers follow; it is nobody's if in `own` one has come to another host."""
        with self._lock:
            sharding = self.sharding
            if self.share == "own" and live == frozenset(sharding.workers):
                due = own_shards(sharding, self._groups())
                if any(
                    worker not in self._held or self._held[worker].shard != due[worker]
                    for worker in live
                ):
                    return replace(sharding, workers=())
            return sharding

    def reshard(
        self, sharding: Sharding, live: Iterable[tuple[int, int]], samples: int = 0
    ) -> list[tuple[Assignment, Assignment]]:
        """Apply a sharding; returns former and new place of those of `live` whose shard changes.

        The others keep their places. New workers are placed by the new sharding.
        """
        with self._lock:
            self.sharding = sharding
            own, moved = sharding.own(), []
            if self.share == "own":
                own = own_shards(sharding, self._groups())
                for worker, shard in own.items():
                    self._shards_of[self._groups()[worker]] = shard.count
            for worker, incarnation in live:
                former = self._held.get(worker)
                if former is None or former.incarnation != incarnation or worker not in own:
                    continue
                if former.shard != own[worker]:
                    new = self._place(worker, own[worker], samples)
                    self._moved[worker, incarnation] = new
                    moved.append((former, new))
            return moved

    def divide(self, divided: Divided) -> None:
        """Give the workers other shares of the batch; they keep their incarnations, and ask for their places."""
        with self._lock:
            # Who trains nothing for now keeps an engine of the smallest batch.
            sizes = tuple(max(1, one) for one in divided.records)
            own = Sharding(divided.workers, sizes, self.share)
            self.sharding, records = own, self._everywhere.records
            samples = divided.samples
            if self.share == "shard" and records:
                samples %= records
            passed = own.batches_passed(samples, self._iter_size)
            shards = own_shards(own, self._groups()) if self.share == "own" else own.own()
            for worker, shard in shards.items():
                held = self._held.get(worker)
                if held is not None and held.shard != shard:
                    data = self._data.get(worker, self._everywhere)
                    skip = shard.batches_to_skip(passed, data.records)
                    self._held[worker] = held.with_shard(shard, skip)

    def _holds(self, worker: int, incarnation: int) -> bool:
        return worker in self._held and self._held[worker].incarnation == incarnation

    def _groups(self) -> dict[int, str]:
        """The group of every slot that was assigned; the others have none."""
        groups = dict.fromkeys(self.sharding.workers, "")
        return groups | {worker: one.group for worker, one in self._data.items()}

    def _free_slot(self, holding: Holding) -> int:
        lowest = next(slot for slot in range(len(self._held) + 1) if slot not in self._held)
        if self.share != "own" or not self._resumed:
            return lowest
        free = [slot for slot in self.sharding.workers if slot not in self._held]
        had = [slot for slot in free if _data_in(self._resumed.get(slot)) == holding.digest]
        new = [slot for slot in free if slot not in self._resumed]
        return next(iter([*had, *new]), lowest)

    def _own_shard(self, shard: Shard, holding: Holding) -> Shard:
        """That of the group's shards which fewest of its workers read."""
        readers = [0] * self._shards_of.get(holding.group, 1)
        for worker, place in self._held.items():
            if self._data[worker].group == holding.group:
                readers[place.rank % len(readers)] += 1
        return replace(shard, rank=readers.index(min(readers)), count=len(readers))

    def _place(self, worker: int, shard: Shard, samples: int) -> Assignment:
        incarnation = self._incarnations[worker] = self._incarnations.get(worker, 0) + 1
        holding, history = self._data.get(worker, self._everywhere), None
        passed = self.sharding.batches_passed(samples, self._iter_size)
        skip = shard.batches_to_skip(passed, holding.records)
        was = self._resumed.pop(worker, None)
        if was is not None and not was.share:  # of a snapshot of Caffe's: a history alone
            skip, history = shard.batches_to_skip(0, holding.records), self._version
        elif was is not None and was == _state(shard, holding, was.batches):
            skip = 0 if shard.share == "once" else was.batches
            history = self._version
        place = Assignment(
            worker,
            incarnation,
            shard.rank,
            shard.count,
            shard.batch_size,
            skip,
            history,
            share=shard.share,
        )
        self._held[worker] = place
        return place


def _state(shard: Shard, holding: Holding, batches: int) -> WorkerState:
    from speedo.run_dir.checkpoint_file import WorkerState

    return WorkerState(
        shard.rank, shard.count, shard.batch_size, batches, shard.share, holding.digest
    )


def _as_before(sizes: tuple[int, ...], resumed: Mapping[int, WorkerState]) -> tuple[int, ...]:
    """The shares that the slots had of the same batch; `sizes` if the checkpoint does not know all of them."""
    before = tuple(one.batch_size for _, one in sorted(resumed.items()) if one.share)
    same = set(resumed) == set(range(len(sizes))) and len(before) == len(sizes)
    return before if same and sum(before) == sum(sizes) else sizes


def _data_in(state: WorkerState | None) -> str | None:
    return None if state is None else state.data
