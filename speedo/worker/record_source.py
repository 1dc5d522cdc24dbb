"""What `run.share` takes: a sequence, arrays of equal length, a Dataset, a DataLoader, or a stream.

PyTorch is known here by the names of its classes and their attributes: a script of NumPy's need not have it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from speedo.errors import ConfigError, ScriptMistake
from speedo.exchange.lease import UNKNOWN, order_of
from speedo.worker.data_checks import checksum, checksums_of, loader_with
from speedo.worker.own_random import OwnRandom

Indices = Sequence[Any] | NDArray[Any]  # record numbers, or what a sampler gives
Numbers = Generator[Indices, None, None]
_END: Final = object()


@dataclass
class RecordSource:
    """`read` takes parts of `order(epoch)`, each a batch, maybe some ahead, and gives the batches.

    An epoch has `records` positions, `batch` of them in a batch. Where each position is a batch itself, as a sampler
    or a stream gives it, `step` is how many records it usually has. `size` counts those of a batch. Of a stream `read`
    sets `records` when it comes to the end. `begins` is what must be there each time that an epoch is read.
    """

    records: int
    batch: int
    shuffle: bool
    drop_last: bool
    read: Callable[[Numbers], Iterator[Any]]
    order: Callable[[int], Indices]
    checks: Callable[[], Mapping[str, str]] = dict  # checksums of records, by name
    begins: Callable[[], Any] = lambda: None
    step: int = 0
    size: Callable[[Indices, Any], int] = lambda part, batch: len(part)

    def batches(self, workers: int) -> int | None:
        """The batches of one of so many workers in an epoch, rounded up; None if that is unknown."""
        batches = (self.records + (0 if self.drop_last else self.batch - 1)) // self.batch
        return None if self.records == UNKNOWN else -(-batches // workers)

    def compared(self) -> Mapping[str, str]:
        """What all workers have that share the same data. Raises `ScriptMistake` for data that none can share."""
        begins, again = (checksum(self.begins()) for _ in range(2))
        if begins != again:
            raise ScriptMistake(
                "what run.share was given has another order when it is read again, so the workers cannot divide it: "
                "let its sampler or stream draw from the global generators of PyTorch, NumPy or Python when it begins"
            )
        records = "unknown" if self.records == UNKNOWN else str(self.records)
        own = {"the number of records": records, "shuffle": str(self.shuffle)}
        return {**own, "the checksum of their order": begins, **self.checks()}


def record_source(
    data: Any, batch: int | None = None, shuffle: bool | None = None, seed: int = 0
) -> RecordSource:
    """The source that `data` is; a ConfigError says why it is none.

    Without `batch` each item of a sequence is given as it is. A DataLoader says itself how it batches and shuffles.
    """
    names = ("dataset", "batch_size", "collate_fn", "drop_last")
    is_loader = all(hasattr(data, name) for name in names)
    is_stream = _is_stream(data.dataset if is_loader else data)
    if is_loader or is_stream:
        if batch is not None or shuffle is not None:
            raise ConfigError(
                f"run.share was given a {'DataLoader' if is_loader else 'stream'} and batch= or shuffle=: the loader "
                "has its own; set batch_size= and shuffle= there"
            )
        return _of_stream(data, seed) if is_stream else _of_loader(data, seed)
    if batch is not None and batch < 1:
        raise ConfigError(f"batch={batch} in run.share: use 1 or more")
    arrays = _arrays_in(data)
    if arrays and batch is None:
        raise ConfigError(
            f"run.share was given {len(arrays)} arrays without a batch size: add batch=, "
            "or give a list of ready batches"
        )
    lengths = {_length(one) for one in arrays or [data]}
    if len(lengths) > 1:
        raise ConfigError(
            f"run.share was given arrays of different lengths, {', '.join(map(str, sorted(lengths)))}: "
            "each record is one row of every array"
        )
    records = lengths.pop()
    rows = partial(_rows, data) if arrays else data.__getitem__

    def read(numbers: Numbers) -> Iterator[Any]:
        for some in numbers:
            if batch is None:
                yield rows(int(some[0]))
            elif arrays or hasattr(data, "shape"):
                yield rows(some)
            else:
                yield [rows(int(one)) for one in some]

    order = partial(order_of, records, seed=seed, shuffle=bool(shuffle))
    checks = partial(checksums_of, records, rows)
    return RecordSource(records, batch or 1, bool(shuffle), False, read, order, checks)


def _arrays_in(data: Any) -> list[Any]:
    """Those in tuples and mappings, however they are nested; empty if there is something else."""
    found = list[Any]()
    if isinstance(data, (tuple, Mapping)):
        for one in data.values() if isinstance(data, Mapping) else data:
            inner = [one] if hasattr(one, "shape") else _arrays_in(one)
            if not inner:
                return []
            found += inner
    return found


def _rows(data: Any, some: Any) -> Any:
    """These rows of each array."""
    if isinstance(data, Mapping):
        return {name: _rows(one, some) for name, one in data.items()}
    return tuple(_rows(one, some) for one in data) if isinstance(data, tuple) else data[some]


# ---------------------------------------------------------------- loaders


class _Feed:
    """What a DataLoader takes as its sampler: the record numbers that the worker leases while the loader reads."""

    def __init__(self, single: bool) -> None:
        self.single = single
        self.numbers: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return (some[0] if self.single else some for some in map(np.ndarray.tolist, self.numbers))


def _of_loader(loader: Any, seed: int) -> RecordSource:
    records = _length(loader.dataset)
    batch, drop_last = loader.batch_size, loader.drop_last
    by_batch = batch is None and getattr(loader, "batch_sampler", None) is not None
    sampler = loader.batch_sampler if by_batch else loader.sampler
    if by_batch and type(sampler).__name__ == "BatchSampler":
        by_batch, batch, drop_last = False, sampler.batch_size, sampler.drop_last
        sampler = sampler.sampler
    shuffle = None if by_batch else _shuffles(sampler, records)
    checks = partial(checksums_of, records, loader.dataset.__getitem__, loader)
    order: Callable[[int], Indices] = partial(order_of, records, seed=seed, shuffle=bool(shuffle))
    if shuffle is None:
        order = partial(_drawn, sampler, seed)
        records = len(order(0))
    if records < (batch if drop_last else 1):
        raise ConfigError(
            f"the loader given to run.share gives no batch: it has {records} records, and with drop_last the last "
            f"ones for less than a batch_size of {batch} are left out; use a smaller one, or drop_last=False"
        )
    # Without a batch size the items are given as they are, unless a batch_sampler divides them.
    feed = _Feed(single=batch is None)
    whole = batch is not None or by_batch
    made = loader_with(loader, **{"batch_sampler" if whole else "sampler": feed})

    def read(numbers: Numbers) -> Iterator[Any]:
        feed.numbers = numbers
        try:
            yield from made
        finally:
            numbers.close()  # else a loop that was left keeps the loader and the share in a circle

    source = RecordSource(records, batch or 1, bool(shuffle), drop_last, read, order, checks)
    if shuffle is None:
        source.begins = lambda: str(list(order(0)))
    if by_batch or (batch is None and isinstance(order(0)[0], list)):
        source.step = max(map(len, order(0)))
        source.size = lambda part, batch: len(part[0])
    return source


def _shuffles(sampler: Any, records: int) -> bool | None:
    """Whether the sampler gives all records in random order, or in theirs; None if it does something else."""
    name = type(sampler).__name__
    if name == "DistributedSampler":  # `run.share` divides instead
        return bool(sampler.shuffle)
    if name not in ("SequentialSampler", "RandomSampler") or len(sampler) != records:
        return None
    return None if getattr(sampler, "replacement", False) else name == "RandomSampler"


def _drawn(sampler: Any, seed: int, epoch: int) -> Indices:
    """What the sampler gives in this epoch: with this seed, whatever was drawn before."""
    with OwnRandom(seed, epoch):
        return np.fromiter(_copy(sampler, epoch), object)


def _copy(sampler: Any, epoch: int) -> Any:
    """One that draws from the present random numbers."""
    own = copy(sampler)
    if hasattr(getattr(own, "generator", None), "manual_seed"):
        own.generator = type(own.generator)()
        own.generator.manual_seed(random.getrandbits(62))
    if hasattr(own, "sampler"):
        own.sampler = _copy(own.sampler, epoch)
    if hasattr(own, "set_epoch"):
        own.set_epoch(epoch)
    return own


# ---------------------------------------------------------------- streams


def _is_stream(data: Any) -> bool:
    """Whether its items have no numbers, and come again each time that it is iterated."""
    if any(one.__name__ == "IterableDataset" for one in type(data).__mro__):
        return True
    kept = (Iterator, Mapping, Set, str, bytes)
    return isinstance(data, Iterable) and not isinstance(data, kept) and not _is_numbered(data)


def _of_stream(data: Any, seed: int) -> RecordSource:
    """Its items are numbered as they come: each worker reads all, and gives those that it leased."""
    dataset, usual = getattr(data, "dataset", data), getattr(data, "batch_size", None)

    def items(data: Any, epoch: int) -> Iterator[Any]:
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        with (own := OwnRandom(seed, epoch)):
            stream = iter(data)
        while True:
            with own:
                item = next(stream, _END)
            if item is _END:
                return
            yield item

    def read(numbers: Numbers) -> Iterator[Any]:
        epoch, at, stream = -1, -1, enumerate(items((), 0))
        for (number,) in numbers:
            wanted, position = divmod(number, UNKNOWN)
            if wanted != epoch or position <= at:
                epoch, at, stream = wanted, -1, enumerate(items(data, wanted))
            for at, item in stream:
                if at == position:
                    yield item
                    break
            else:
                source.records = at + 1

    def size(_: Indices, item: Any) -> int:
        while isinstance(item, (list, tuple, Mapping)) and item:
            item = next(iter(item.values() if isinstance(item, Mapping) else item))
        return min((usual, *getattr(item, "shape", ())[:1])) if usual else 1

    def order(epoch: int) -> Indices:
        return range(epoch * UNKNOWN, (epoch + 1) * UNKNOWN)

    source = RecordSource(UNKNOWN, 1, False, False, read, order, step=usual or 1, size=size)
    source.begins = lambda: next(items(dataset, 0), None)
    return source


def _is_numbered(data: Any) -> bool:
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


def _length(data: Any) -> int:
    """How many records it has; they must be found by number."""
    if isinstance(data, (Mapping, Set)) or not _is_numbered(data):
        raise ConfigError(
            f"run.share cannot divide a {type(data).__name__}: it needs records with numbers, or a stream that can be "
            "iterated again. Give it a list, arrays, a Dataset, an IterableDataset, or a DataLoader over one of these"
        )
    if len(data) == 0:
        raise ConfigError(f"the {type(data).__name__} given to run.share has no records")
    return len(data)
