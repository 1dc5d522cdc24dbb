"""The worker's side of the leases: batches of the records that it leased, and which of them its loop has trained."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from speedo.errors import ConfigError, ScriptMistake
from speedo.exchange.lease import UNKNOWN, Lease, LeaseRequest, NoLease, join_ranges
from speedo.worker.record_source import Indices, Numbers, RecordSource, record_source


class SharedBatches:
    """What `run.share` returns: `begin` begins an epoch; `number` batches are one of this worker's."""

    def __init__(self, begin: Callable[[], Iterator[Any]], number: int | None) -> None:
        self._begin, self._number = begin, number
        self._begun: Iterator[Any] | None = None

    def __len__(self) -> int:
        if self._number is None:
            raise TypeError("a stream given to run.share has no known length")
        return self._number

    def __iter__(self) -> Iterator[Any]:
        begun, self._begun = self._begun, None
        return begun or self._begin()

    def __next__(self) -> Any:
        self._begun = self._begun or self._begin()
        return next(self._begun)


class RecordShare:
    """The records of one worker process; what `run.share` calls.

    `lease` asks the master. `wait` is called when nothing is left but what other workers hold: it must publish what
    was `taken`, as every other worker may wait for that in turn, and return when it is time to ask again. A lease is
    of one turn's records, `steps` batches, or 1 % of the data set over all `workers` if that is more and it may lease
    `ahead`.
    """

    def __init__(
        self,
        lease: Callable[[LeaseRequest], Lease | NoLease],
        wait: Callable[[], None],
        seed: int,
        *,
        steps: int = 1,
        workers: int = 1,
        ahead: bool = True,
    ) -> None:
        self._lease = lease
        self._wait = wait
        self._seed = seed
        self.steps = steps
        self.workers, self._ahead = workers, ahead
        self.epoch = 0  # of the loop that comes next
        self.given = 0  # records that the loop was given since the last step
        self.of_round = 0  # records that this worker was dealt for the next round of its team, which are a batch
        self._over = False  # the present loop has nothing to come
        self._kept: list[Lease] = []  # leased and not yet in a batch
        self._taken: list[Lease] = []  # given to the loop since the last turn
        self._skipped: list[Lease] = []  # not to be trained, and the master does not know yet
        self._orders: dict[int, Indices] = {}  # of the latest epochs
        # The loader reads them; the loop has not seen them
        self._ahead_of_loop: deque[tuple[Lease | None, Indices]] = deque()
        self._data: Any = None
        self._how: tuple[int | None, bool | None] = (None, None)  # batch and shuffle, as given
        self._source: RecordSource | None = None

    def batches(
        self, data: Any, batch: int | None = None, shuffle: bool | None = None, epochs: int = 0
    ) -> Iterator[Any]:
        """This worker's batches of one epoch: the next with each call. A run has one data set.

        Without `epochs`, how many the script wants in all, each epoch ends for all workers at once: only when all its
        records are settled is it known that none comes back.
        """
        source = self.source_of(data, batch, shuffle)
        return self._loop(source, epochs)

    @property
    def source(self) -> RecordSource:
        """Of the data set that `batches` was given."""
        assert self._source is not None
        return self._source

    @property
    def has_loaders(self) -> bool:
        """Whether processes read the batches, which start again after each pause in the record numbers."""
        return getattr(self._data, "num_workers", 0) > 0

    @property
    def reads_ahead(self) -> bool:
        """Whether there are batches that the loop has not come to yet."""
        return bool(self._ahead_of_loop)

    @property
    def has_kept(self) -> bool:
        """Whether it has records that no loop has come to."""
        return bool(self._kept)

    def taken(self) -> tuple[tuple[Lease, ...], int]:
        """What the loop was given since the last call, and how many records that is: what the turn trained."""
        ranges, self._taken = join_ranges(self._taken), []
        return ranges, sum(map(len, ranges))

    @property
    def held(self) -> tuple[Lease, ...]:
        """What it has of the master, but for the results of its turns."""
        ahead = (lease for lease, _ in self._ahead_of_loop if lease is not None)
        return (*self._kept, *self._taken, *self._skipped, *ahead)

    def lose(self, leases: tuple[Lease, ...]) -> None:
        """Others train these, which it `held`."""
        for held in (self._kept, self._taken, self._skipped):
            held[:] = [one for one in held if one not in leases]
        for at, (lease, numbers) in enumerate(self._ahead_of_loop):
            if lease in leases:
                self._ahead_of_loop[at] = None, numbers

    def close(self) -> None:
        """Ends the processes of a loader. Left to the garbage collector, PyTorch waits 5 s for each of them."""
        self._data = self._source = None

    def give_back(self, ranges: tuple[Lease, ...]) -> None:
        """These were taken, and what came of them is lost: they are trained once more."""
        self._kept = list(join_ranges((*ranges, *self._kept)))

    # ------------------------------------------------------------ parts

    def source_of(self, data: Any, batch: int | None, shuffle: bool | None) -> RecordSource:
        """The same as long as `data` is: a loader's processes may stay from epoch to epoch."""
        former = self._source
        if former is not None and data is self._data and self._how == (batch, shuffle):
            return former
        source = record_source(data, batch, shuffle, self._seed)
        if former is not None:
            for what in ("records", "shuffle"):
                before, now = getattr(former, what), getattr(source, what)
                if before != now and UNKNOWN not in (before, now):
                    raise ConfigError(
                        f"run.share was called with {what}={before} before and {what}={now} now: "
                        "a run shares one data set; iterate over others without run.share"
                    )
        self._data, self._how, self._source = data, (batch, shuffle), source
        return source

    def _loop(self, source: RecordSource, epochs: int) -> Iterator[Any]:
        epoch, self.epoch, self._over = self.epoch, self.epoch + 1, False
        ahead = self._ahead_of_loop = deque[tuple[Lease | None, Indices]]()
        try:
            while not self._over:
                for one in source.read(self._record_numbers(source, epoch, epochs, ahead)):
                    lease, numbers = ahead.popleft()
                    if lease is None:  # others train it
                        continue
                    self._taken.append(lease)
                    self.given += source.size(numbers, one)
                    yield one
                if not self._over:
                    self._wait()
        finally:  # the script may have left its loop
            self._kept = list(join_ranges((*(one for one, _ in ahead if one), *self._kept)))
            ahead.clear()

    def _record_numbers(
        self,
        source: RecordSource,
        epoch: int,
        epochs: int,
        ahead: deque[tuple[Lease | None, Indices]],
    ) -> Numbers:
        """Batch after batch, until this epoch's loop is over or has to wait."""
        while True:
            while self._kept:
                lease = self._kept.pop(0)
                if lease.epoch > epoch:
                    self._kept.insert(0, lease)
                    self._over = True
                    return
                stop = min(lease.stop, lease.start + max(source.batch, self.of_round))
                if stop < lease.stop:
                    self._kept.insert(0, Lease(lease.epoch, stop, lease.stop))
                part = Lease(lease.epoch, lease.start, stop)
                if source.drop_last and len(part) < source.batch and stop == source.records:
                    self._skipped.append(part)
                    continue
                numbers = self._order(source, part.epoch)[part.start : part.stop]
                ahead.append((part, numbers))
                yield numbers
                if part.stop > source.records:  # the stream has ended before it
                    ahead.pop()
                    self._skipped.append(part)
            answer = self._lease(
                LeaseRequest(
                    source.records,
                    source.shuffle,
                    self._count(source),
                    epoch,
                    epochs,
                    tuple(self._skipped),
                )
            )
            self._skipped.clear()
            if isinstance(answer, Lease):
                self._kept.append(answer)
            elif not self._kept:  # else the turn was lost meanwhile, and its records came back
                self._over = answer is NoLease.OVER
                return

    def _count(self, source: RecordSource) -> int:
        most = source.batch * self.steps
        if self._ahead and source.records < UNKNOWN:
            most = max(most, source.records // (100 * self.workers))
        return most // source.batch * source.batch

    def _order(self, source: RecordSource, epoch: int) -> Indices:
        if epoch not in self._orders:
            if len(self._orders) > 1:
                del self._orders[min(self._orders)]
            order = self._orders[epoch] = source.order(epoch)
            if len(order) not in (source.records, UNKNOWN):
                raise ScriptMistake(
                    f"the sampler of the loader given to run.share gives {len(order)} indices or batches in epoch "
                    f"{epoch} and {source.records} in epoch 0: give run.share one with the same number in each"
                )
        return self._orders[epoch]
