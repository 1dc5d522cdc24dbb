"""Decides which worker reads which shard of the records, and when to redistribute them. Pure: no I/O, no clock.

Shard `rank` of `count` holds every record whose number modulo `count` is `rank` (Caffe: layers/data_layer.cpp,
Skip). So the shards of one sharding hold each record exactly once. Other ways of sharing are `DataShare`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from speedo.engines.solver import split_batch
from speedo.system.bounds import DataShare


@dataclass(frozen=True, slots=True)
class Shard:
    """Share `rank` of `count` of the records, read `batch_size` at a time; what that means, `share` says."""

    rank: int
    count: int
    batch_size: int
    share: DataShare = "shard"

    @property
    def reads(self) -> tuple[int, int]:
        """Rank and count for Caffe, which knows no other way than `shard`."""
        return (self.rank, self.count) if self.share in ("shard", "own") else (0, 1)

    def batches_to_skip(self, passed: int, records: int | None) -> int:
        """Batches before the first one of a new reader, where the others have read `passed` batches of theirs.

        The source has `records`. In its second pass and later a reader goes to the same place of its first pass.
        """
        if self.share == "once":
            return 0
        count = self.reads[1]
        first = self.rank * (records or 0) // self.count if self.share == "offset" else 0
        at = first // self.batch_size + passed
        share = (records or 0) // count
        if self.share == "shard" or at * self.batch_size < share or not share:
            return at
        return at * self.batch_size % share // self.batch_size


@dataclass(frozen=True, slots=True)
class Sharding:
    """A shard for each of `workers`: `workers[k]` reads shard `k`, `batch_sizes[k]` records at a time.

    A worker that reads less than half as much as the fastest has no shard of its own: its records would seldom be
    trained. It reads all, at its own speed, and the others divide them. With `own` only the batch sizes are meant;
    `own_shards` gets the hosts and their records.
    """

    workers: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    share: DataShare = "shard"

    @property
    def count(self) -> int:
        return len(self.batch_sizes)

    def shard(self, rank: int) -> Shard:
        size = self.batch_sizes[rank]
        if self.share == "offset":
            return Shard(rank, self.count, size, self.share)
        fast = [at for at, one in enumerate(self.batch_sizes) if 2 * one >= max(self.batch_sizes)]
        if self.share in ("same", "once") or rank not in fast:
            return Shard(0, 1, size, self.share)
        return Shard(fast.index(rank), len(fast), size, self.share)

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


def own_shards(sharding: Sharding, groups: Mapping[int, str]) -> Mapping[int, Shard]:
    """The shard of each worker in `own`: of what its group has, among the workers of the group, by their slots."""
    shards, sizes = {}, dict(zip(sharding.workers, sharding.batch_sizes, strict=True))
    for worker in sharding.workers:
        group = [other for other in sorted(sharding.workers) if groups[other] == groups[worker]]
        among = Sharding(tuple(group), tuple(sizes[other] for other in group), sharding.share)
        shards[worker] = among.shard(group.index(worker))
    return shards


def sharding_for(
    workers: Iterable[int],
    batch_size: int,
    *,
    split: bool,
    records: int | None,
    share: DataShare = "shard",
) -> Sharding | None:
    """One shard for each of the workers; None if the batch or the data has fewer records than there are workers.

    With `split` the shares of the batch add up to `batch_size`, so that one round merges what one solver step of
    sequential Caffe reads.
    """
    slots = tuple(sorted(workers))
    enough = records is None or share != "shard"
    most = min(batch_size if split else len(slots), len(slots) if enough else records or 0)
    if not slots or len(slots) > most:
        return None
    sizes = split_batch(batch_size, len(slots)) if split else (batch_size,) * len(slots)
    return Sharding(slots, sizes, share)


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
