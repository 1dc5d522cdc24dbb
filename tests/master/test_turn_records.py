"""The records of each turn: blocks, what comes back, and the end of the run."""

from __future__ import annotations

from typing import Any

import pytest

from speedo.errors import CheckpointError
from speedo.master.lease_book import LeaseBook
from speedo.master.turn_records import TurnRecords
from speedo.messages import (
    Drop,
    Finish,
    Joined,
    Kind,
    Left,
    Merge,
    Part,
    Records,
    SetAside,
    Train,
    Trained,
)

NOTED: list[str] = []


def records_of(workers: int, *, records: int = 400, samples: int = 800) -> TurnRecords:
    book = TurnRecords(LeaseBook(0, records), samples, NOTED.append)
    NOTED.clear()
    for worker in range(workers):
        book.saw(Joined(worker, 1, 4), 0.0)
    return book


def train(book: TurnRecords, worker: int, ticket: int, steps: int = 1) -> Records:
    command = book.with_records(Train(worker, 1, ticket, 0, 0, steps, 4, Kind.DELTA))
    assert isinstance(command, Train)
    return command.records


def trained(book: TurnRecords, worker: int, ticket: int, samples: int = 4) -> None:
    book.saw(Trained(worker, 1, ticket, 0.5, samples), 0.0)


def merge(book: TurnRecords, *tickets: int) -> None:
    parts = tuple(Part(0, 1, ticket, 4, 0, 0.5) for ticket in tickets)
    book.with_records(Merge(1, 1, 4, 1.0, parts))


def drop(book: TurnRecords, worker: int, ticket: int, decision: str) -> None:
    book.with_records(Drop(worker, 1, ticket, decision, "", 0, 0.5))


def test_a_worker_reads_on_where_its_last_turn_ended() -> None:
    book = records_of(2)
    assert train(book, 0, 1) == ((0, 0, 4),)
    assert train(book, 1, 2) == ((0, 8, 12),)  # a twentieth of the epoch for each of two, in turns
    assert train(book, 0, 3) == ((0, 4, 8),)
    assert train(book, 0, 4) == ((0, 16, 20),)


def test_the_command_says_what_probably_comes_after_it() -> None:
    book = records_of(1)
    command = book.with_records(Train(0, 1, 1, 0, 0, 2, 4, Kind.DELTA))
    assert isinstance(command, Train)
    assert (command.records, command.ahead) == (((0, 0, 8),), 8)


@pytest.mark.parametrize("decision", ["discarded", "refused"])
def test_what_is_not_merged_is_trained_again(decision: str) -> None:
    book = records_of(1, records=8, samples=8)
    assert train(book, 0, 1) == ((0, 0, 4),)
    trained(book, 0, 1)
    drop(book, 0, 1, decision)
    assert train(book, 0, 2) == ((0, 0, 4),)
    assert book.again == 4


def test_a_turn_given_ahead_of_one_that_is_refused_gives_its_records_back() -> None:
    book = records_of(1, records=8, samples=8)
    assert (train(book, 0, 1), train(book, 0, 2)) == (((0, 0, 4),), ((0, 4, 8),))
    drop(book, 0, 1, "refused")
    assert (train(book, 0, 3), train(book, 0, 4)) == (((0, 0, 4),), ((0, 4, 8),))
    trained(book, 0, 2)  # it comes all the same
    drop(book, 0, 2, "late")
    assert book.missing == 8


def test_a_dead_workers_records_are_trained_by_another() -> None:
    book = records_of(2, records=80, samples=80)
    assert train(book, 0, 1) == ((0, 0, 4),)
    train(book, 0, 2)
    trained(book, 0, 1)
    book.saw(Left(0, 1, "killed"), 0.0)
    merge(book, 1)  # its result had come
    assert train(book, 1, 3) == ((0, 4, 8),)
    assert book.missing == 76


def test_the_records_of_a_worker_set_aside_are_trained_by_another() -> None:
    book = records_of(2, records=80, samples=80)
    assert train(book, 0, 1) == ((0, 0, 4),)
    train(book, 1, 2)
    trained(book, 0, 1)
    drop(book, 0, 1, "refused")
    book.with_records(SetAside(0, 1, "three results were refused"))
    assert train(book, 1, 3) == ((0, 0, 4),)


def test_a_turn_that_ends_early_gives_back_the_rest() -> None:
    book = records_of(1, records=16, samples=16)
    assert train(book, 0, 1, steps=4) == ((0, 0, 16),)
    trained(book, 0, 1, samples=4)
    merge(book, 1)
    assert train(book, 0, 2, steps=3) == ((0, 4, 16),)


def test_at_the_end_of_the_run_the_rest_of_anothers_block_is_taken() -> None:
    book = records_of(2, records=800, samples=800)
    assert train(book, 0, 1, steps=4) == ((0, 0, 16),)
    assert train(book, 1, 2) == ((0, 16, 20),)  # of its block, which ends at 36
    assert train(book, 0, 3, steps=190) == ((0, 36, 796),)
    assert train(book, 0, 4) == ((0, 796, 800),)
    assert train(book, 0, 5) == ((0, 32, 36),)
    assert train(book, 1, 6, steps=3) == ((0, 20, 32),)
    assert train(book, 0, 7) == ((1, 0, 4),)  # nothing else is left


def test_a_turn_goes_on_into_the_next_epoch() -> None:
    book = records_of(1, records=10, samples=20)
    assert train(book, 0, 1, steps=3) == ((0, 0, 10), (1, 0, 2))


def test_what_was_left_out_is_told_at_the_end() -> None:
    book = records_of(2, records=8, samples=8)
    train(book, 0, 1)
    train(book, 1, 2)
    trained(book, 0, 1)
    merge(book, 1)
    early = book.with_records(Finish(complete=True, reason="the test accuracy is 0.9"))
    assert isinstance(early, Finish)
    assert (early.left_out, NOTED) == (0, [])
    book.with_records(Finish(complete=True, reason="reached max_iter 2"))
    assert NOTED == [
        "warning: 4 records that the run was to train are in no result that was merged"
    ]


def test_a_resumed_run_trains_what_was_not_merged() -> None:
    book = records_of(2, records=40, samples=40)
    train(book, 0, 1)
    train(book, 1, 2)
    trained(book, 0, 1)
    merge(book, 1)
    again = TurnRecords.of_run(40, 40, 4, book.state(), NOTED.append)
    again.saw(Joined(0, 2, 4), 0.0)
    assert again.missing == 36
    assert train(again, 0, 3, steps=9) == ((0, 4, 40),)


def test_a_resumed_run_without_such_a_table_begins_where_the_run_is() -> None:
    book = TurnRecords.of_run(40, 120, 52, b"", NOTED.append)
    book.saw(Joined(0, 1, 4), 0.0)
    assert train(book, 0, 1) == ((1, 12, 16),)
    other = TurnRecords.of_run(30, 120, 52, book.state(), NOTED.append)
    other.saw(Joined(0, 1, 4), 0.0)
    assert train(other, 0, 1) == ((1, 22, 26),)


@pytest.mark.parametrize("state", [b"{", b"[]", b"null", b'{"records": 3}'])
def test_a_damaged_table_is_refused(state: bytes) -> None:
    with pytest.raises(CheckpointError, match="table of trained records is damaged"):
        TurnRecords.of_run(40, 120, 52, state, NOTED.append)


def test_a_worker_that_is_not_in_the_run_is_given_nothing() -> None:
    command: Any = Train(7, 1, 1, 0, 0, 1, 4, Kind.DELTA)
    assert records_of(1).with_records(command) == command
