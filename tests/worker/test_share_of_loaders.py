"""PyTorch's DataLoader over the records that a worker leases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing import active_children
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from speedo.errors import ConfigError, ScriptMistake
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


def samplers() -> dict[str, dict[str, Any]]:
    """Arguments of a loader over 21 records."""
    import torch
    from torch.utils.data import (
        BatchSampler,
        DistributedSampler,
        RandomSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )

    items, chance = list(range(RECORDS)), torch.Generator()
    chance.seed()  # as in another process
    weighted = WeightedRandomSampler([1.0] * RECORDS, 10, generator=chance)
    return {
        "subset": {"sampler": SubsetRandomSampler(items[:9]), "batch_size": 4},
        "weighted": {"sampler": weighted, "batch_size": 4, "drop_last": True},
        "replacement": {"sampler": RandomSampler(items, replacement=True), "batch_size": 4},
        "few": {"sampler": RandomSampler(items, num_samples=7), "batch_size": None},
        "distributed": {"sampler": DistributedSampler(items, 2, 1), "batch_size": 4},
        "batches": {"batch_sampler": BatchSampler(RandomSampler(items), 4, True)},
        "own batches": {"batch_sampler": [[1, 2, 3], [4], [3, 5]]},
        "lists": {"sampler": BatchSampler(RandomSampler(items), 4, False), "batch_size": None},
    }


@pytest.mark.parametrize(
    ("kind", "number", "sizes"),
    [
        ("subset", 3, [4, 4, 1]),
        ("weighted", 2, [4, 4]),
        ("replacement", 6, [4, 4, 4, 4, 4, 1]),
        ("few", 7, [1] * 7),
        ("distributed", 6, [4, 4, 4, 4, 4, 1]),
        ("batches", 5, [4] * 5),
        ("own batches", 3, [3, 1, 2]),
        ("lists", 6, [4, 4, 4, 4, 4, 1]),
    ],
)
def test_a_sampler_gives_all_workers_one_list_for_each_epoch(
    kind: str, number: int, sizes: list[int]
) -> None:
    """It follows from the seed alone, and the script's random numbers go on as if nothing was drawn."""
    import torch

    def epoch(run: Run, data: Any) -> list[list[int]]:
        found = list[list[int]]()
        for x, _ in run.share.batches(data, epochs=2):
            found.append(x.reshape(-1).tolist())
            assert run.share.given == len(found[-1])
            run.share.given = 0
        return found

    run, data, state = Run(), loader(**samplers()[kind]), torch.get_rng_state()
    source = run.share.source_of(data, None, None)
    compared = source.compared()
    assert torch.equal(torch.get_rng_state(), state)
    assert (source.batches(1), source.batches(2)) == (number, (number + 1) // 2)
    epochs = [epoch(run, data), epoch(run, data)]
    assert [[len(one) for one in found] for found in epochs] == [sizes, sizes]
    assert (epochs[0] == epochs[1]) == (kind == "own batches")
    assert (kind in ("distributed", "lists")) == (
        {one for some in epochs[0] for one in some} == {*range(RECORDS)}
    )

    late, data = Run(), loader(**samplers()[kind])  # in another process
    torch.manual_seed(7)
    late_source = late.share.source_of(data, None, None)
    late.book.records, late.book.epoch = source.records, 1
    assert late_source.compared() == compared
    assert [epoch(late, data), epoch(late, data)] == [[], epochs[1]]


class OwnState:
    """A sampler whose order depends on how often it was iterated."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(3)

    def __iter__(self) -> Iterator[int]:
        return iter(self.random.permutation(RECORDS).tolist())

    def __len__(self) -> int:
        return RECORDS


class Shorter(OwnState):
    """Gives fewer in a later epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(RECORDS - self.epoch))


def test_a_sampler_that_workers_cannot_draw_alike_is_refused() -> None:
    source = Run().share.source_of(loader(sampler=OwnState(), batch_size=4), None, None)
    with pytest.raises(ScriptMistake, match="has another order when it is read again"):
        source.compared()
    run, data = Run(), loader(sampler=Shorter(), batch_size=4)
    assert len(run.epoch(data, epochs=2)) == 6
    with pytest.raises(ScriptMistake, match="gives 20 indices or batches in epoch 1 and 21 in ep"):
        run.epoch(data, epochs=2)


def test_an_epoch_of_a_stream_is_divided_and_ends_for_all_with_it() -> None:
    """Its order is that of the seed. It is read again where an item comes back; its length is known then."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset[torch.Tensor]):
        epoch, begun = 0, 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[torch.Tensor]:
            self.begun += 1
            return iter(100 * self.epoch + torch.randperm(10))

    run = Run()
    run.book.joined(1, 1)
    shares, data = (run.share, run.worker(1)), [DataLoader(Stream(), 4) for _ in range(2)]
    first, second = (
        one.source_of(each, None, None) for one, each in zip(shares, data, strict=True)
    )
    assert first.compared() == second.compared()
    assert first.batches(2) is None
    loops = [one.batches(each, epochs=2) for one, each in zip(shares, data, strict=True)]
    torch.manual_seed(1)
    found = [next(loops[0]), next(loops[1])]
    torch.manual_seed(2)
    assert (shares[0].given, shares[1].given) == (4, 4)
    found.append(next(loops[0]))
    run.book.left(1, 1)  # dies with the second batch
    assert shares[0].given == 4 + 2
    assert data[0].dataset.begun == 3  # twice for the check
    found += [*loops[0]]
    assert sorted(torch.cat(found).tolist()) == sorted([*range(10), *found[1].tolist()])
    assert torch.equal(found[3], found[1])
    assert run.book.records == 3
    assert [sorted(torch.cat(run.epoch(data[0], epochs=2)).tolist())] == [[*range(100, 110)]]
    assert run.book.settled(1) == 3
    assert data[0].dataset.begun == 5


def test_a_stream_that_begins_with_something_else_is_refused() -> None:
    class Once:
        """It cannot be read again."""

        def __init__(self) -> None:
            self.items = iter(range(9))

        def __iter__(self) -> Iterator[int]:
            return self.items

    with pytest.raises(ScriptMistake, match="has another order when it is read again"):
        Run().share.source_of(Once(), None, None).compared()


def test_a_loader_of_a_users_class_stays_one() -> None:
    from torch.utils.data import DataLoader

    class Own(DataLoader[Any]):
        def __init__(self, size: int) -> None:
            super().__init__(list(range(size)), batch_size=2)

        def __iter__(self) -> Any:
            return (batch + 1 for batch in super().__iter__())

    assert [one.tolist() for one in Run().epoch(Own(3))] == [[1, 2], [3]]


def test_loaders_that_cannot_be_shared_are_refused() -> None:
    refused: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
        ({}, {"batch": 2}, ["a DataLoader and batch=", "batch_size="]),
        ({}, {"shuffle": True}, ["shuffle=", "batch_size="]),
        ({"batch_size": 4, "drop_last": True}, {}, ["has 3 records", "of 4", "a smaller"]),
        ({"sampler": []}, {}, ["gives no batch: it has 0 records"]),
    ]
    for options, named, words in refused:
        with pytest.raises(ConfigError) as refusal:
            Run().share.batches(loader(3, **options), **named)
        assert [word for word in words if word not in str(refusal.value)] == [], refusal.value
