"""PyTorch's DataLoader over the records that a worker leases."""

from __future__ import annotations

import time
from multiprocessing import active_children
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from speedo.errors import ConfigError
from speedo.exchange.lease import Lease, order_of
from tests.support.leased_run import SEED, Run

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

pytestmark = pytest.mark.torch

RECORDS = 21


def loader(records: int = RECORDS, **named: Any) -> DataLoader[Any]:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    numbers = torch.arange(records)
    return DataLoader(TensorDataset(numbers, numbers * 2), **named)


def numbers_of(batches: list[Any]) -> list[list[int]]:
    for x, y in batches:
        assert (y == x * 2).all()
    return [x.tolist() for x, _ in batches]


def cut(order: np.ndarray[Any, Any], batch: int) -> list[list[int]]:
    return [order[at : at + batch].tolist() for at in range(0, len(order), batch)]


@pytest.mark.processes
@pytest.mark.parametrize(("workers", "stay"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_gives_its_batches_in_the_order_of_the_epoch(
    workers: int, stay: bool, shuffle: bool
) -> None:
    """Its processes, where it has some, fetch ahead; what they fetched and the loop did not see is not trained."""
    data = loader(batch_size=4, shuffle=shuffle, num_workers=workers, persistent_workers=stay)
    run = Run(steps=2)
    orders = [cut(order_of(RECORDS, epoch, SEED, shuffle), 4) for epoch in range(3)]
    batches = run.share.batches(data, epochs=3)
    seen = [next(batches), next(batches), next(batches)]
    run.merge_turn()
    assert run.turns == [(Lease(0, 0, 12),)]
    assert (len(run.asked) > 2) == bool(workers)
    batches.close()  # as `break` does
    for _ in range(2):
        seen += run.epoch(data, epochs=3)
    begun = time.monotonic()
    run.share.close()
    assert time.monotonic() - begun < 4
    assert active_children() == []
    assert numbers_of(seen) == orders[0] + orders[1] + orders[2]
    assert run.book.settled(2) == RECORDS
    assert run.book.settled(1) == RECORDS


@pytest.mark.processes
def test_a_worker_that_waits_has_trained_all_that_was_fetched_ahead() -> None:
    """Else others would wait for that, and it for them."""
    run = Run(steps=1)
    run.book.joined(1, 1)
    other = run.worker(1).batches(loader(batch_size=4), epochs=1)
    next(other)

    def wait() -> None:
        run.merge_turn()
        run.book.left(1, 1)

    run.share._wait = wait
    seen = run.epoch(loader(batch_size=4, num_workers=2), epochs=1)
    assert numbers_of(seen) == [*cut(np.arange(4, RECORDS), 4), [0, 1, 2, 3]]
    assert run.turns == [(Lease(0, 4, RECORDS),), (Lease(0, 0, 4),)]
    assert run.book.settled(0) == RECORDS


def test_drop_last_drops_the_end_of_the_epoch_and_the_epoch_is_settled() -> None:
    run = Run(steps=2)
    seen = run.epoch(loader(batch_size=4, drop_last=True), epochs=1)
    assert numbers_of(seen) == cut(np.arange(20), 4)
    assert run.asked[-2].skipped == (Lease(0, 20, 21),)
    assert run.book.settled(0) == RECORDS


def test_a_loader_without_batches_gives_its_items() -> None:
    seen = Run().epoch(loader(3, batch_size=None))
    assert [(int(x), int(y)) for x, y in seen] == [(0, 0), (1, 2), (2, 4)]


def test_a_dataset_and_tensors_need_no_loader() -> None:
    import torch

    dataset = loader(3).dataset
    assert [int(x) for x, _ in Run().epoch(dataset)] == [0, 1, 2]
    seen = Run().epoch((torch.arange(5), torch.arange(5) * 2), batch=2)
    assert numbers_of(seen) == [[0, 1], [2, 3], [4]]


def test_the_collate_function_is_the_loaders_own() -> None:
    seen = Run().epoch(loader(4, batch_size=2, collate_fn=lambda items: len(items)))
    assert seen == [2, 2]


def test_loaders_that_cannot_be_shared_are_refused() -> None:
    from torch.utils.data import (
        BatchSampler,
        DataLoader,
        IterableDataset,
        RandomSampler,
        SequentialSampler,
        WeightedRandomSampler,
    )

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

        def __len__(self) -> int:
            return 3

    class Own(DataLoader[Any]):
        def __init__(self, size: int) -> None:
            super().__init__(list(range(size)), batch_size=2)

    items = list(range(6))
    divides = "divides the records among the workers itself"
    refused = [
        (DataLoader(Stream()), {}, ["cannot divide a Stream", "__len__ and __getitem__"]),
        (
            loader(6, sampler=WeightedRandomSampler([1.0] * 6, 6)),
            {},
            ["sampler (WeightedRandomSampler)", divides],
        ),
        (
            loader(6, sampler=RandomSampler(items, num_samples=3)),
            {},
            ["sampler (RandomSampler with num_samples", divides],
        ),
        (
            loader(6, sampler=RandomSampler(items, replacement=True)),
            {},
            ["or replacement)", divides],
        ),
        (
            loader(6, batch_sampler=BatchSampler(SequentialSampler(items), 2, False)),
            {},
            ["a batch_sampler of its own", divides],
        ),
        (Own(6), {}, ["class Own", "a plain DataLoader"]),
        (loader(6), {"batch": 2}, ["a DataLoader and batch=", "batch_size="]),
        (loader(6), {"shuffle": True}, ["shuffle=", "batch_size="]),
        (loader(3, batch_size=4, drop_last=True), {}, ["of 3 records no batch of 4", "smaller"]),
    ]
    for data, named, words in refused:
        with pytest.raises(ConfigError) as refusal:
            Run().share.batches(data, **named)
        assert [word for word in words if word not in str(refusal.value)] == [], refusal.value
