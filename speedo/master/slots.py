"""The worker slots of a run: who holds each, how often each was assigned, and its shard."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from speedo.master.sharding import Shard, Sharding
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

    It reads shard `rank` of `count`, and skips `skip` batches of it before its first turn. `history` is the
    version of the checkpoint whose solver history it restores, if any. `redis_url` is for this worker alone, and holds
    its password; so do the URLs of `servers`, those that have the center, in the order of their ranges.
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

    @property
    def shard(self) -> Shard:
        return Shard(self.rank, self.count, self.batch_size)


class Roster:
    """The slots and their workers; may be called from several threads.

    At first there is a shard for each of the expected workers. `samples`, where it is an argument, is what the run has
    merged: a new reader of a shard continues where the run is. `resumed` gives the data positions of the slots in the
    checkpoint of `version`; the first worker in such a slot continues exactly there.
    """

    def __init__(
        self,
        batch_sizes: tuple[int, ...],
        iter_size: int = 1,
        *,
        resumed: Mapping[int, WorkerState] | None = None,
        version: int = 0,
    ) -> None:
        self.sharding = Sharding(tuple(range(len(batch_sizes))), batch_sizes)
        self._iter_size = iter_size
        self._incarnations: dict[int, int] = {}
        self._held: dict[int, Assignment] = {}
        self._moved: dict[tuple[int, int], Assignment] = {}
        self._resumed = dict(resumed or {})
        self._version = version
        self._lock = threading.Lock()

    def assign(self, samples: int = 0) -> Assignment:
        """Assign the lowest free slot to one more worker; beyond the expected number shards are shared."""
        with self._lock:
            worker = next(slot for slot in range(len(self._held) + 1) if slot not in self._held)
            others = [place.shard for place in self._held.values()]
            return self._place(worker, self.sharding.shard_for(worker, others), samples)

    def release(self, worker: int, incarnation: int) -> None:
        """Free the slot, unless it was assigned again."""
        with self._lock:
            if self._holds(worker, incarnation):
                del self._held[worker]

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

    def reshard(
        self, sharding: Sharding, live: Iterable[tuple[int, int]], samples: int = 0
    ) -> list[tuple[Assignment, Assignment]]:
        """Apply a sharding; returns former and new place of those of `live` whose shard changes.

        The others keep their places. New workers are placed by the new sharding.
        """
        with self._lock:
            self.sharding = sharding
            own, moved = sharding.own(), []
            for worker, incarnation in live:
                former = self._held.get(worker)
                if former is None or former.incarnation != incarnation or worker not in own:
                    continue
                if former.shard != own[worker]:
                    new = self._place(worker, own[worker], samples)
                    self._moved[worker, incarnation] = new
                    moved.append((former, new))
            return moved

    def _holds(self, worker: int, incarnation: int) -> bool:
        return worker in self._held and self._held[worker].incarnation == incarnation

    def _place(self, worker: int, shard: Shard, samples: int) -> Assignment:
        incarnation = self._incarnations[worker] = self._incarnations.get(worker, 0) + 1
        skip, history = self.sharding.batches_passed(samples, self._iter_size), None
        was = self._resumed.pop(worker, None)
        if was is not None and Shard(was.rank, was.count, was.batch_size) == shard:
            skip, history = was.batches, self._version
        place = Assignment(
            worker, incarnation, shard.rank, shard.count, shard.batch_size, skip, history
        )
        self._held[worker] = place
        return place
