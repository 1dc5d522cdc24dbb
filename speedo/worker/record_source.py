"""What `run.share` takes: a sequence, arrays of equal length, a Dataset, or a DataLoader; read by record number.

PyTorch is known here by the names of its classes and their attributes: a script of NumPy's need not have it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from speedo.errors import ConfigError

Indices = NDArray[np.int64]
Numbers = Generator[Indices, None, None]

# What a DataLoader keeps of its arguments, beside the data set and how it is divided into batches.
_KEPT: Final = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)


@dataclass(frozen=True)
class RecordSource:
    """`read` takes the record numbers of batch after batch, maybe some ahead, and gives the batches in this order."""

    records: int
    batch: int
    shuffle: bool
    drop_last: bool
    read: Callable[[Numbers], Iterator[Any]]


def record_source(data: Any, batch: int | None = None, shuffle: bool | None = None) -> RecordSource:
    """The source that `data` is; a ConfigError says why it is none.

    Without `batch` each item of a sequence is given as it is. A DataLoader says itself how it batches and shuffles.
    """
    if all(hasattr(data, name) for name in ("dataset", "batch_size", "collate_fn", "drop_last")):
        if batch is not None or shuffle is not None:
            raise ConfigError(
                "run.share was given a DataLoader and batch= or shuffle=: the loader has its own; "
                "set batch_size= and shuffle= there"
            )
        return _of_loader(data)
    if batch is not None and batch < 1:
        raise ConfigError(f"batch={batch} in run.share: use 1 or more")
    if isinstance(data, tuple) and data and all(hasattr(one, "shape") for one in data):
        return _of_arrays(data, batch, bool(shuffle))
    records = _length(data)

    def read(numbers: Numbers) -> Iterator[Any]:
        for some in numbers:
            if batch is None:
                yield data[int(some[0])]
            elif hasattr(data, "shape"):
                yield data[some]
            else:
                yield [data[int(one)] for one in some]

    return RecordSource(records, batch or 1, bool(shuffle), False, read)


def _of_arrays(arrays: tuple[Any, ...], batch: int | None, shuffle: bool) -> RecordSource:
    lengths = {_length(one) for one in arrays}
    if len(lengths) > 1:
        raise ConfigError(
            f"run.share was given arrays of different lengths, {', '.join(map(str, sorted(lengths)))}: "
            "each record is one row of every array"
        )
    if batch is None:
        raise ConfigError(
            f"run.share was given {len(arrays)} arrays without a batch size: add batch=, "
            "or give a list of ready batches"
        )
    return RecordSource(
        lengths.pop(),
        batch,
        shuffle,
        False,
        lambda numbers: (tuple(one[some] for one in arrays) for some in numbers),
    )


class _Feed:
    """What a DataLoader takes as its sampler: the record numbers that the worker leases while the loader reads."""

    def __init__(self, single: bool) -> None:
        self.single = single
        self.numbers: Iterator[Indices] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return (int(some[0]) if self.single else some.tolist() for some in self.numbers)


def _of_loader(loader: Any) -> RecordSource:
    kind = type(loader).__name__
    # Without a batch size the items are given as they are, unless a batch_sampler divides them.
    single = loader.batch_size is None and getattr(loader, "batch_sampler", None) is None
    records = _length(loader.dataset)
    name, own = type(loader.sampler).__name__, ""
    if loader.batch_size is None and not single:
        own = "batch_sampler"
    elif name not in ("SequentialSampler", "RandomSampler"):
        own = f"sampler ({name})"
    elif getattr(loader.sampler, "replacement", False) or len(loader.sampler) != records:
        own = f"sampler ({name} with num_samples or replacement)"
    if own:
        raise ConfigError(
            f"the {kind} given to run.share has a {own} of its own: run.share divides the records "
            "among the workers itself; make the loader with batch_size= and shuffle= alone"
        )
    if loader.drop_last and records < loader.batch_size:
        raise ConfigError(
            f"the {kind} given to run.share drops the last batch if it is not full, and of {records} "
            f"records no batch of {loader.batch_size} is: use a smaller batch_size, or drop_last=False"
        )
    feed = _Feed(single)
    kept = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
    place = {"batch_size": None, "sampler": feed} if single else {"batch_sampler": feed}
    try:
        made = type(loader)(loader.dataset, **place, **kept)
    except TypeError as error:
        raise ConfigError(
            f"run.share makes a loader of the class {kind} over the records of this worker, and its "
            f"constructor takes other arguments than PyTorch's DataLoader ({error}): "
            "give run.share a plain DataLoader"
        ) from error

    def read(numbers: Numbers) -> Iterator[Any]:
        feed.numbers = numbers
        try:
            yield from made
        finally:
            numbers.close()  # else a loop that was left keeps the loader and the share in a circle

    shuffled = name == "RandomSampler"
    return RecordSource(records, loader.batch_size or 1, shuffled, loader.drop_last, read)


def _length(data: Any) -> int:
    """How many records it has; they must be found by number."""
    streams = any(one.__name__ == "IterableDataset" for one in type(data).__mro__)
    try:
        records = None if streams or isinstance(data, (Mapping, set, frozenset)) else len(data)
    except TypeError:
        records = None
    if records is None or not hasattr(data, "__getitem__"):
        raise ConfigError(
            f"run.share cannot divide a {type(data).__name__}: it needs records with numbers. Give it a "
            "list, arrays, a Dataset with __len__ and __getitem__, or a DataLoader over one of these"
        )
    if records == 0:
        raise ConfigError(f"the {type(data).__name__} given to run.share has no records")
    return records
