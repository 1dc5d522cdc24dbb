"""A team's records: in each round its members train what one process would, and each record is trained once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedo.exchange.lease import DealRequest, Dealt, Lease, LeaseRequest, NoLease
from speedo.master.lease_book import LeaseBook
from speedo.master.leases import Leases
from speedo.messages import Divided, Drop, Left, Pause, Trained

MEMBERS = ((0, 1), (1, 1))


def deal(
    book: LeaseBook,
    records: int,
    rounds: int,
    *,
    epochs: int = 2,
    drop_last: bool = False,
    divides: bool = False,
    number: tuple[int, int] = (1, 1),
) -> Dealt:
    request = LeaseRequest(records, False, 4, 0, epochs)
    return book.deal(DealRequest(number, request, MEMBERS, rounds, drop_last, divides))


def book_of(*members: tuple[int, int]) -> LeaseBook:
    book = LeaseBook(seed=1)
    for member in members:
        book.joined(*member)
    return book


def test_a_round_is_a_batch_of_one_process_and_ends_with_the_epoch() -> None:
    found = deal(book_of(*MEMBERS), 10, 3)
    assert found == Dealt(
        (
            (Lease(0, 0, 4), Lease(0, 4, 8)),
            (Lease(0, 8, 10), None),
            (Lease(1, 0, 4), Lease(1, 4, 8)),
        )
    )


def test_a_round_that_is_divided_by_speed_has_as_many_records() -> None:
    leases = Leases(book := book_of(*MEMBERS), pytest.fail)
    leases.divide(Divided((0, 1), (7, 1), 0, "by speed"))
    found = deal(book, 10, 3, divides=True)
    assert found == Dealt(
        (
            (Lease(0, 0, 7), Lease(0, 7, 8)),
            (Lease(0, 8, 10), None),
            (Lease(1, 0, 7), Lease(1, 7, 8)),
        )
    )
    equal = (Lease(1, 8, 10), None)  # for a script whose batches must stay as they are
    assert deal(book, 10, 1, number=(1, 2)) == Dealt((equal,))


def test_what_is_no_whole_batch_is_left_out_if_the_loader_drops_it() -> None:
    book = book_of(*MEMBERS)
    found = deal(book, 10, 3, epochs=1, drop_last=True)
    assert found == Dealt(((Lease(0, 0, 4), Lease(0, 4, 8)),), NoLease.WAIT)
    for ticket, member in enumerate(MEMBERS):
        book.trained(*member, ticket, [Lease(0, 4 * ticket, 4 * ticket + 4)])
        book.merged(ticket)
    assert deal(book, 10, 3, epochs=1, drop_last=True) == Dealt((), NoLease.OVER)


def test_a_member_that_is_gone_is_dealt_nothing() -> None:
    assert deal(book_of((0, 1)), 10, 3) == Dealt((), NoLease.WAIT)
    leases = Leases(LeaseBook(seed=1), pytest.fail)
    leases.saw(Left(1, 1, "killed"), 0.0)
    request = DealRequest((1, 1), LeaseRequest(10, False, 4, 0, 2), MEMBERS, 3)
    assert leases.deal(request) == Dealt((), NoLease.WAIT)
    assert leases.lease(0, 1, request.request) == Lease(0, 0, 4)


def test_what_a_member_was_dealt_and_did_not_get_is_free_again() -> None:
    """The leader was killed before it handed it out: nobody knew of it, and nobody trained it."""
    book = book_of(*MEMBERS)
    assert deal(book, 24, 1, number=(5, 1)).rounds == ((Lease(0, 0, 4), Lease(0, 4, 8)),)
    assert deal(book, 24, 1, number=(5, 2)).rounds == ((Lease(0, 8, 12), Lease(0, 12, 16)),)
    for _ in range(2):
        book.not_dealt(1, 1, (5, 2))
    book.left(0, 1)
    book.joined(0, 2)
    again = DealRequest((9, 1), LeaseRequest(24, False, 4, 0, 2), ((0, 2), (1, 1)), 3)
    assert book.deal(again).rounds == (
        (Lease(0, 0, 4), Lease(0, 8, 12)),
        (Lease(0, 12, 16), Lease(0, 16, 20)),
        (Lease(0, 20, 24), None),
    )
    book.trained(1, 1, 7, [Lease(0, 4, 8)])  # which it got
    book.merged(7)
    assert book.settled(0) == 4


def test_a_deal_that_a_member_did_not_wait_for_is_not_made() -> None:
    """The request of a leader that was killed came late."""
    leases = Leases(LeaseBook(seed=1), pytest.fail)
    leases.not_dealt(1, 1, (5, 2))
    request = DealRequest((5, 2), LeaseRequest(10, False, 4, 0, 2), MEMBERS, 3)
    assert leases.deal(request) == Dealt((), NoLease.WAIT)
    found = leases.deal(replace(request, number=(9, 1), rounds=1))
    assert found.rounds == ((Lease(0, 0, 4), Lease(0, 4, 8)),)
    leases.saw(Left(1, 1, "killed"), 0.0)
    leases.not_dealt(1, 1, (9, 1))
    assert leases.lease(0, 1, request.request) == Lease(0, 4, 8)  # once


def test_a_worker_waits_once_its_pause_is_known_with_what_it_trained_before() -> None:
    """Its question overtook its last result: that counted as records that it does not train, and it was sent home."""
    leases = Leases(LeaseBook(seed=1), pytest.fail)
    request = LeaseRequest(4, False, 4, 0, 1)
    assert leases.lease(0, 1, request) == Lease(0, 0, 4)
    waits = replace(request, waits=True)
    assert leases.lease(0, 1, waits) is NoLease.WAIT
    leases.saw(Trained(0, 1, 7, 0.5, 4, {}, records=((0, 0, 4),)), 0.0)
    leases.saw(Pause(0, 1), 0.0)
    assert leases.lease(0, 1, waits) is NoLease.WAIT  # it may be dropped
    leases.did(Drop(0, 1, 7, "late", ""), 0.0)
    assert leases.lease(0, 1, waits) == Lease(0, 0, 4)  # and makes no step on them
    leases.saw(Pause(0, 1, over=True), 0.0)
    assert leases.lease(0, 1, waits) is NoLease.WAIT
    leases.saw(Pause(0, 1), 0.0)
    assert leases.lease(0, 1, waits) is NoLease.OVER


@given(
    records=st.integers(1, 60),
    rounds=st.integers(1, 5),
    lost=st.lists(st.booleans(), max_size=12),
    drop_last=st.booleans(),
)
def test_whatever_turns_are_lost_each_record_is_trained_once(
    records: int, rounds: int, lost: list[bool], drop_last: bool
) -> None:
    book, ticket, settled = book_of(*MEMBERS), 0, list[tuple[int, int]]()
    while (found := deal(book, records, rounds, drop_last=drop_last)).rounds:
        void = bool(lost) and lost.pop()
        for member, at in zip(MEMBERS, (0, 1), strict=True):
            leases = [one for row in found.rounds if (one := row[at]) is not None]
            ticket += 1
            book.trained(*member, ticket, leases)
            if void:
                book.dropped(ticket)
            else:
                book.merged(ticket)
                settled += [(one.epoch, p) for one in leases for p in range(one.start, one.stop)]
    assert found.short is NoLease.OVER
    kept = records - (records % 4 if drop_last else 0)
    assert sorted(settled) == [(epoch, at) for epoch in range(2) for at in range(kept)]
