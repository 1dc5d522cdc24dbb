"""Batches of leased records: in order, each once, from whatever a script has its records in."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from speedo.errors import ConfigError
from speedo.exchange.lease import Claim, Lease, LeaseRequest, order_of
from speedo.master.lease_book import LeaseBook
from speedo.worker.share import RecordShare
from tests.support.leased_run import SEED, Run

# ---------------------------------------------------------------- what a script gives


def test_ready_batches_are_given_one_by_one() -> None:
    batches = [("x0", "y0"), ("x1", "y1"), ("x2", "y2")]
    assert Run().epoch(batches) == batches


def test_arrays_are_cut_into_batches_of_matching_rows() -> None:
    x, y = np.arange(20).reshape(10, 2), np.arange(10)
    found = Run().epoch((x, y), batch=4)
    assert [len(rows) for rows, _ in found] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate([rows for rows, _ in found]), x)
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in found]), y)


def test_arrays_may_be_in_dictionaries_and_tuples_in_each_other() -> None:
    x, y = np.arange(20).reshape(10, 2), np.arange(10)
    found = Run().epoch({"x": x, "more": (y, {"y": y})}, batch=4)
    assert [len(one["x"]) for one in found] == [4, 4, 2]
    for one in found:
        np.testing.assert_array_equal(one["x"], x[one["more"][0]])
        np.testing.assert_array_equal(one["more"][0], one["more"][1]["y"])


def test_one_array_and_a_list_have_batches_too() -> None:
    found = Run().epoch(np.arange(5.0), batch=2)
    assert [some.tolist() for some in found] == [[0.0, 1.0], [2.0, 3.0], [4.0]]
    assert Run().epoch(["a", "b", "c"], batch=2) == [["a", "b"], ["c"]]


def test_each_epoch_has_an_order_of_its_own_that_every_process_computes() -> None:
    run = Run()
    epochs = [run.epoch(list(range(50)), shuffle=True, epochs=3) for _ in range(3)]
    assert epochs == [order_of(50, epoch, SEED, True).tolist() for epoch in range(3)]
    assert all(sorted(one) == list(range(50)) for one in epochs)
    assert len({tuple(one) for one in epochs}) == 3


def test_the_order_of_an_epoch_is_the_same_with_every_numpy() -> None:
    """Runs are resumed, and joined, by hosts with another version."""
    assert order_of(8, 3, 7, True).tolist() == [2, 4, 7, 3, 5, 1, 0, 6]


CANNOT_DIVIDE = ["needs records with numbers", "a list, arrays, a Dataset", "DataLoader"]


class Letters:
    """A stream that begins again each time."""

    def __iter__(self) -> Iterator[str]:
        return iter("abc")


@pytest.mark.parametrize(
    ("data", "named", "words"),
    [
        ((one for one in "abc"), {}, ["a generator", *CANNOT_DIVIDE]),
        ({"x": [1], "y": [2]}, {}, ["a dict", *CANNOT_DIVIDE]),
        (zip([1], [2], strict=True), {}, ["a zip", *CANNOT_DIVIDE]),
        ({"a", "b"}, {}, ["a set", *CANNOT_DIVIDE]),
        (Letters(), {"batch": 2}, ["a stream and batch=", "batch_size="]),
        ([], {}, ["list", "no records"]),
        ([1, 2], {"batch": 0}, ["batch=0", "1 or more"]),
        ((np.zeros(3), np.zeros(4)), {"batch": 2}, ["different lengths, 3, 4"]),
        ((np.zeros(3), np.zeros(3)), {}, ["2 arrays", "add batch="]),
        ({"x": np.zeros(3), "y": (np.zeros(4),)}, {"batch": 2}, ["different lengths, 3, 4"]),
    ],
)
def test_what_cannot_be_shared_is_refused_before_the_loop(
    data: Any, named: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        Run().share.batches(data, **named)
    assert [word for word in words if word not in str(refusal.value)] == []


def test_another_data_set_in_the_same_run_is_refused() -> None:
    run = Run()
    run.epoch([1, 2, 3])
    with pytest.raises(ConfigError, match=r"records=3 before and records=2 now"):
        run.share.batches([1, 2])
    with pytest.raises(ConfigError, match=r"shuffle=False before and shuffle=True now"):
        run.share.batches([1, 2, 3], shuffle=True)
    assert run.epoch([4, 5, 6]) == [4, 5, 6]


# ---------------------------------------------------------------- what is leased and taken


@pytest.mark.parametrize(
    ("steps", "workers", "count"), [(1, 1, 600), (1, 4, 128), (10, 4, 640), (1, 100, 64)]
)
def test_a_lease_is_one_turn_or_one_percent_over_the_workers(
    steps: int, workers: int, count: int
) -> None:
    run = Run(steps=steps, workers=workers)
    next(run.share.batches(np.zeros(60_000), batch=64 if (steps, workers) != (1, 1) else 100))
    assert [one.count for one in run.asked] == [count]


def test_taken_is_what_the_loop_was_given_since_the_last_turn() -> None:
    run = Run(steps=3)
    batches = run.share.batches(list(range(20)), batch=2)
    next(batches), next(batches)
    assert run.share.taken() == ((Lease(0, 0, 4),), 4)
    assert run.share.taken() == ((), 0)
    next(batches), next(batches)
    assert run.share.taken() == ((Lease(0, 4, 8),), 4)


def test_a_loop_that_is_left_goes_on_with_the_same_records_in_the_next() -> None:
    run, data = Run(steps=5), list(range(10))
    first = list(islice(run.share.batches(data, epochs=2), 3))
    assert first + run.epoch(data, epochs=2) == [*data, *data]


def test_the_lease_of_a_later_epoch_ends_the_loop_and_is_kept() -> None:
    run, data = Run(steps=4), list(range(4))
    assert run.epoch(data, epochs=3) == data
    assert run.book.settled(0) == 0  # no wait for it, as the script wants more epochs
    assert run.epoch(data, epochs=3) == data
    assert [one.epoch for one in run.asked] == [0, 0, 1]
    assert run.share.taken()[0] == (Lease(0, 0, 4), Lease(1, 0, 4))


def test_a_worker_that_joins_in_a_later_epoch_has_empty_loops_before_it() -> None:
    run, data = Run(steps=4), list(range(4))
    run.book = LeaseBook.from_state(
        {"seed": 5, "records": 4, "shuffle": False, "epoch": 2, "position": 2, "free": [[1, 3, 4]]}
    )
    run.book.joined(0, 1)
    assert [run.epoch(data, epochs=4) for _ in range(4)] == [[], [3], [2, 3], data]
    assert [run.book.settled(epoch) for epoch in range(4)] == [4] * 4


def test_the_last_records_are_waited_for_and_trained_if_they_come_back() -> None:
    run = Run(steps=2)
    run.book.joined(1, 1)
    other = run.worker(1, steps=2).batches(list(range(4)), epochs=1)
    next(other)
    waits = []

    def wait() -> None:
        run.merge_turn()
        waits.append(run.book.settled(0))
        if len(waits) == 2:
            run.book.left(1, 1)

    run.share._wait = wait
    assert run.epoch(list(range(4)), epochs=1) == [2, 3, 0, 1]
    assert waits == [2, 2, 4]


# ---------------------------------------------------------------- many workers


@pytest.mark.parametrize("seed", range(40))
def test_each_record_of_each_epoch_is_merged_once_by_somebody(seed: int) -> None:
    """Workers step in a random order, die, join, leave their loops; results are merged, dropped, late.

    Another master takes over with what was settled at the last merge, and what the workers have.
    """
    chance = random.Random(seed)
    records, epochs = chance.randint(1, 60), chance.randint(1, 3)
    batch, known = chance.randint(1, 7), chance.random() < 0.5
    book, data = LeaseBook(SEED), list(range(records))
    merged: Counter[tuple[int, int]] = Counter()
    turns: list[int] = []
    running: dict[int, tuple[int, RecordShare, Iterator[Any]]] = {}
    processes, tickets = 0, 0
    journal = book.state()

    def settle(ticket: int) -> None:
        nonlocal journal
        if chance.random() < 0.7:
            for one in book.of_ticket(ticket):
                merged.update((one.epoch, at) for at in range(one.start, one.stop))
            journal = book.state([ticket])
            book.merged(ticket)
        else:
            book.dropped(ticket)

    def publish(worker: int, incarnation: int, share: RecordShare) -> None:
        nonlocal tickets
        tickets += 1
        book.trained(worker, incarnation, tickets, share.taken()[0])
        turns.append(tickets)

    def script(share: RecordShare) -> Iterator[Any]:
        for epoch in range(epochs):
            for one in share.batches(data, batch, True, epochs if known else 0):
                yield one
                if epoch < epochs - 1 and chance.random() < 0.02:
                    break

    def start(worker: int) -> None:
        nonlocal processes
        processes += 1
        incarnation = processes
        book.joined(worker, incarnation)

        def wait() -> None:
            publish(worker, incarnation, share)
            for ticket in list(turns):
                turns.remove(ticket)
                settle(ticket)
            for other in list(running):  # all others go on until they are through, or die
                if other in running and running[other][0] != -1:
                    go(other)

        share = RecordShare(
            lambda request: book.lease(worker, incarnation, request),
            wait,
            SEED,
            steps=chance.randint(1, 4),
            workers=3,
        )
        running[worker] = (incarnation, share, script(share))

    def go(worker: int) -> None:
        incarnation, share, loop = running[worker]
        running[worker] = (-1, share, loop)  # a generator cannot be entered twice
        alive = next(loop, None) is not None and chance.random() > 0.03
        if alive:
            running[worker] = (incarnation, share, loop)
            if chance.random() < 0.4:
                publish(worker, incarnation, share)
            for ticket in list(turns):
                if chance.random() < 0.5:
                    turns.remove(ticket)
                    settle(ticket)
        else:
            book.left(worker, incarnation)
            del running[worker]

    def take_over() -> None:
        nonlocal book
        book = LeaseBook.from_state(journal, same_scripts=True)
        turns.clear()
        for worker in chance.sample(list(running), len(running)):
            incarnation, share, _ = running[worker]
            book.joined(worker, incarnation)
            if held := share.held:
                share.lose(book.brings(worker, incarnation, Claim(records, held)))
            if chance.random() < 0.3:  # before the next one is there
                request = LeaseRequest(
                    records, True, 2 * batch, share.epoch, epochs if known else 0
                )
                if isinstance(found := book.lease(worker, incarnation, request), Lease):
                    share.give_back((found,))

    for worker in range(3):
        start(worker)
    wanted = {(epoch, at) for epoch in range(epochs) for at in range(records)}
    for _ in range(20_000):
        if set(merged) == wanted:
            break
        free = [one for one in range(4) if one not in running]
        if not running or (free and chance.random() < 0.01):
            start(chance.choice(free))
        if chance.random() < 0.02:
            take_over()
        go(chance.choice(list(running)))
    assert set(merged) == wanted
    assert set(merged.values()) == {1}
