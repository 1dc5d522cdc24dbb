"""Decides which worker reads which shard of the records, and when to redistribute them. Pure: no I/O, no clock.

Shard `rank` of `count` holds every record whose number modulo `count` is `rank` (Caffe: layers/data_layer.cpp,
Skip). So the shards of one sharding hold each record exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from speedo.solver import split_batch


@dataclass(frozen=True, slots=True)
class Shard:
    """Share `rank` of `count` of the records, read `batch_size` at a time."""

    rank: int
    count: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class Sharding:
    """A shard for each of `workers`: `workers[k]` reads shard `k`, `batch_sizes[k]` records at a time."""

    workers: tuple[int, ...]
    batch_sizes: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.batch_sizes)

    def shard(self, rank: int) -> Shard:
        return Shard(rank, self.count, self.batch_sizes[rank])

    def own(self) -> Mapping[int, Shard]:
        """The shard of each worker that this sharding was made for."""
        return {worker: self.shard(rank) for rank, worker in enumerate(self.workers)}

    def shard_for(self, worker: int, others: Iterable[Shard]) -> Shard:
        """The worker's own shard; for a worker that has none, the one that fewest of `others` read."""
        if worker in self.workers:
            return self.shard(self.workers.index(worker))
        readers = [0] * self.count
        for other in others:
            readers[other.rank % self.count] += 1
        return self.shard(readers.index(min(readers)))

    def batches_passed(self, samples: int, iter_size: int) -> int:
        """Batches of its shard that each worker has read when `samples` are merged, rounded to whole solver steps."""
        return samples // (sum(self.batch_sizes) * iter_size) * iter_size


def sharding_for(
    workers: Iterable[int], batch_size: int, *, split: bool, records: int | None
) -> Sharding | None:
    """One shard for each of the workers; None if the batch or the data has fewer records than there are workers.

    With `split` the shares of the batch add up to `batch_size`, so that one round merges what one solver step of
    sequential Caffe reads.
    """
    slots = tuple(sorted(workers))
    most = min(batch_size if split else len(slots), len(slots) if records is None else records)
    if not slots or len(slots) > most:
        return None
    sizes = split_batch(batch_size, len(slots)) if split else (batch_size,) * len(slots)
    return Sharding(slots, sizes)


@dataclass(slots=True)
class Resharding:
    """Decides when to redistribute: once the set of live workers differs from the sharding's for `after_s` seconds.

    A worker that dies and returns to its slot is the same worker. While workers come and go nothing is redistributed,
    because every redistribution costs each worker its turn. 0 s: never.
    """

    after_s: float
    _seen: frozenset[int] = frozenset()
    _since: float = 0.0

    def due(self, live: frozenset[int], present: Sharding, now: float) -> bool:
        """Whether to redistribute now; call it often, with `now` in seconds of one clock."""
        if live != self._seen:
            self._seen, self._since = live, now
        if not live or not self.after_s or live == frozenset(present.workers):
            return False
        return now - self._since >= self.after_s
