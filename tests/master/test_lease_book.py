"""Each position of each epoch is settled exactly once, whoever joins, leaves or dies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from speedo.errors import CheckpointError, ConfigError
from speedo.exchange.lease import UNKNOWN, Lease, LeaseRequest, NoLease
from speedo.master.lease_book import LeaseBook
from speedo.master.leases import Leases
from speedo.messages import Finish, SetAside

Position = tuple[int, int]  # epoch, place in its order


def positions(*leases: Lease) -> list[Position]:
    return [(one.epoch, at) for one in leases for at in range(one.start, one.stop)]


def ask(records: int = 10, count: int = 4, epochs: int = 1, **more: Any) -> LeaseRequest:
    return LeaseRequest(records, more.pop("shuffle", True), count, 0, epochs, **more)


def book_with(*workers: int) -> LeaseBook:
    book = LeaseBook(seed=1)
    for worker in workers:
        book.joined(worker, 1)
    return book


class Runs(RuleBasedStateMachine):
    """Compared with a table of all positions; every way that a run can take ends with all of them settled."""

    turns = Bundle("turns")

    @initialize(records=st.integers(1, 40), epochs=st.integers(1, 3), known=st.booleans())
    def begin(self, records: int, epochs: int, known: bool) -> None:
        self.records, self.epochs, self.known = records, epochs, known
        self.wanted = epochs if known else 0
        self.book = LeaseBook(seed=3)
        self.incarnations = 0
        self.workers: dict[int, int] = {}
        self.loops: dict[int, int] = {}
        self.held: dict[int, list[Position]] = {}
        self.in_turn: dict[int, list[Position]] = {}
        self.settled: dict[Position, int] = {}
        self.ticket = 0

    # ---------------------------------------------------------------- what can happen

    @rule(worker=st.integers(0, 3))
    def join(self, worker: int) -> None:
        self.incarnations += 1
        self.workers[worker] = self.incarnations
        self.loops[worker] = 0
        self.held[worker] = []
        self.book.joined(worker, self.incarnations)

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.workers)))
        incarnation = self.workers.pop(worker)
        del self.held[worker]
        self.book.left(worker, incarnation)
        self.book.left(worker, incarnation)  # said twice, it is the same
        assert self.book.lease(worker, incarnation, self.request(worker, 1)) is NoLease.WAIT

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), count=st.integers(1, 15))
    def lease(self, data: st.DataObject, count: int) -> None:
        self.lease_of(data.draw(st.sampled_from(sorted(self.workers))), count)

    @precondition(lambda self: any(self.held.values()))
    @rule(target=turns, data=st.data())
    def train(self, data: st.DataObject) -> Any:
        worker = data.draw(st.sampled_from([one for one, have in self.held.items() if have]))
        share = data.draw(st.integers(0, len(self.held[worker])))
        return self.train_of(worker, share)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def skip(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([one for one, have in self.held.items() if have]))
        place = self.held[worker].pop()
        self.settled[place] = self.settled.get(place, 0) + 1
        self.lease_of(worker, 1, (Lease(place[0], place[1], place[1] + 1),))

    @rule(ticket=consumes(turns))
    def merge(self, ticket: int) -> None:
        for place in self.in_turn.pop(ticket, []):
            self.settled[place] = self.settled.get(place, 0) + 1
        for _ in range(2):  # a result is merged once
            self.book.merged(ticket)
        self.book.dropped(ticket)

    @rule(ticket=consumes(turns))
    def drop(self, ticket: int) -> None:
        self.in_turn.pop(ticket, None)
        for _ in range(2):
            self.book.dropped(ticket)
        self.book.merged(ticket)

    @rule(worker=st.integers(0, 3))
    def hear_a_dead_process(self, worker: int) -> None:
        before = repr(self.book)
        self.book.left(worker, 0)
        self.book.joined(worker, 0) if worker in self.workers else None
        self.book.trained(worker, 0, 10**6, [Lease(0, 0, 1)])
        assert self.book.lease(worker, 0, ask(self.records)) is NoLease.WAIT
        assert repr(self.book) == before

    @rule()
    def resume(self) -> None:
        """All workers and results on their way are gone with the old master."""
        self.book = LeaseBook.from_state(json.loads(json.dumps(self.book.state())))
        self.workers.clear()
        self.held.clear()
        self.in_turn.clear()
        self.wanted = self.epochs if self.known else 0

    # ---------------------------------------------------------------- one step of a worker

    def request(self, worker: int, count: int, skipped: tuple[Lease, ...] = ()) -> LeaseRequest:
        epochs = self.epochs if self.known else 0
        loop = self.loops.get(worker, 0)
        return LeaseRequest(self.records, True, count, loop, epochs, skipped)

    def lease_of(self, worker: int, count: int, skipped: tuple[Lease, ...] = ()) -> Any:
        request = self.request(worker, count, skipped)
        free = self.free(max(self.wanted, request.epochs or request.epoch + 1))
        answer = self.book.lease(worker, self.workers[worker], request)
        self.wanted = max(self.wanted, request.epochs or request.epoch + 1)
        if isinstance(answer, Lease):
            found = positions(answer)
            assert 1 <= len(found) <= count
            assert set(found) <= free
            assert found[0] == min(free)
            self.held[worker] += found
            if answer.epoch > self.loops[worker] or answer.stop == self.records:
                self.loops[worker] = min(self.epochs - 1, max(answer.epoch, self.loops[worker]))
        else:
            assert free == set()
            assert (answer is NoLease.OVER) == (not any(self.busy()))
            if answer is NoLease.OVER:
                self.loops[worker] = min(self.epochs - 1, self.loops[worker] + 1)
        return answer

    def train_of(self, worker: int, share: int) -> Any:
        self.held[worker].sort()
        part, self.held[worker] = self.held[worker][:share], self.held[worker][share:]
        self.ticket += 1
        self.in_turn[self.ticket] = part
        leases = [Lease(epoch, at, at + 1) for epoch, at in part]
        self.book.trained(worker, self.workers[worker], self.ticket, reversed(leases))
        assert positions(*self.book.of_ticket(self.ticket)) == part
        return multiple(self.ticket)

    # ---------------------------------------------------------------- what always holds

    def busy(self) -> list[Position]:
        return [one for have in (*self.held.values(), *self.in_turn.values()) for one in have]

    def free(self, epochs: int) -> set[Position]:
        """What came back may be of an epoch that a resumed run's loops have not reached again."""
        wanted = {(epoch, at) for epoch in range(epochs) for at in range(self.records)}
        return (wanted | self.unsettled()) - set(self.busy()) - set(self.settled)

    def unsettled(self) -> set[Position]:
        found = positions(*self.book._unsettled())
        assert len(found) == len(set(found))
        return set(found)

    @invariant()
    def nothing_is_held_or_settled_twice(self) -> None:
        busy = self.busy()
        assert len(busy) == len(set(busy))
        assert not set(busy) & set(self.settled)
        assert all(times == 1 for times in self.settled.values())

    @invariant()
    def each_position_is_where_it_should_be(self) -> None:
        assert set(self.busy()) <= self.unsettled()
        for epoch in range(self.epochs):
            assert self.book.settled(epoch) == sum(one[0] == epoch for one in self.settled)

    def teardown(self) -> None:
        """From wherever the run is, a new worker beside those that go on brings it to its end."""
        if not hasattr(self, "book"):
            return
        for ticket in sorted(self.in_turn):
            self.drop(ticket)
        self.join(4)
        for _ in range(10 * self.epochs * (self.records + 10)):
            for worker in sorted(self.workers):
                answer = self.lease_of(worker, 7)
                if self.held[worker]:
                    self.train_of(worker, len(self.held[worker]))
                    self.merge(self.ticket)
            if answer is NoLease.OVER and len(self.settled) == self.epochs * self.records:
                break
        assert set(self.settled) == {
            (e, at) for e in range(self.epochs) for at in range(self.records)
        }
        self.nothing_is_held_or_settled_twice()
        self.each_position_is_where_it_should_be()


Runs.TestCase.settings = settings(max_examples=80, stateful_step_count=60)
TestRuns = Runs.TestCase


# ---------------------------------------------------------------- by hand


def test_leases_follow_the_order_and_end_with_the_epoch() -> None:
    book = book_with(0, 1)
    found = [book.lease(worker, 1, ask(epochs=2)) for worker in (0, 1, 0, 1)]
    assert found == [Lease(0, 0, 4), Lease(0, 4, 8), Lease(0, 8, 10), Lease(1, 0, 4)]


def test_what_a_dead_worker_had_not_reported_is_given_out_first() -> None:
    book = book_with(0, 1)
    book.lease(0, 1, ask())
    book.trained(0, 1, 7, [Lease(0, 0, 2)])
    book.left(0, 1)
    assert book.lease(1, 1, ask()) == Lease(0, 2, 4)
    assert book.lease(1, 1, ask()) == Lease(0, 4, 8)


def test_a_result_that_a_dead_worker_had_published_may_still_be_merged() -> None:
    """As `sync` does: what it already sent still counts. Its records must not be trained again then."""
    book = book_with(0, 1)
    book.lease(0, 1, ask(records=4))
    book.trained(0, 1, 7, [Lease(0, 0, 4)])
    book.left(0, 1)
    assert book.lease(1, 1, ask(records=4)) is NoLease.WAIT
    book.merged(7)
    assert book.lease(1, 1, ask(records=4)) is NoLease.OVER
    assert book.settled(0) == 4


def test_where_the_number_of_epochs_is_unknown_an_epoch_is_wanted_once_a_worker_is_in_it() -> None:
    book = book_with(0, 1)
    whole = LeaseRequest(4, True, 4, 0)
    assert book.lease(0, 1, whole) == Lease(0, 0, 4)
    assert book.lease(1, 1, whole) is NoLease.WAIT
    assert book.lease(0, 1, LeaseRequest(4, True, 4, 1)) == Lease(1, 0, 4)


def test_another_number_of_records_is_refused_and_changes_nothing() -> None:
    book = book_with(0, 1)
    book.lease(0, 1, ask())
    before = repr(book)
    with pytest.raises(
        ConfigError, match="worker 1 shares a data set of 11 records, the run has one of 10"
    ):
        book.lease(1, 1, ask(records=11))
    assert repr(book) == before


def test_other_data_than_that_of_the_first_worker_is_refused() -> None:
    """What only one of them could read is not compared."""
    leases = Leases(LeaseBook(1), print)
    leases.check(1, {"shuffle": "True", "the checksum of record 0": "1a"})
    leases.check(0, {"shuffle": "True", "the checksum of record 9": "2b"})
    with pytest.raises(
        ConfigError, match="worker 2 is not that of worker 1: shuffle is False inst"
    ):
        leases.check(2, {"shuffle": "False"})


def test_the_end_of_a_stream_is_the_end_of_its_epochs_for_all() -> None:
    """Worker 0 comes to the end, after 5 items; what was leased behind it is of no use, also if a worker dies."""
    book, asks = book_with(0, 1, 2), ask(records=UNKNOWN, count=3, epochs=2)
    first, second, third = (book.lease(worker, 1, asks) for worker in (1, 0, 2))
    assert (first, second, third) == (Lease(0, 0, 3), Lease(0, 3, 6), Lease(0, 6, 9))
    ended = ask(records=5, count=0, skipped=(Lease(0, 5, 6),))
    assert book.lease(0, 1, ended) is NoLease.WAIT
    book.left(1, 1)
    book.left(2, 1)
    assert positions(*book._free) == positions(Lease(0, 0, 3))
    assert book.lease(0, 1, asks) == Lease(0, 0, 3)  # it has not read so far yet
    assert book.lease(0, 1, ask(records=5, count=9, epochs=2)) == Lease(1, 0, 5)
    assert LeaseBook.from_state(book.state()).records == 5


def test_a_worker_cannot_report_what_it_does_not_hold() -> None:
    book = book_with(0, 1)
    book.lease(0, 1, ask())
    before = repr(book)
    for ranges in ([Lease(0, 2, 5)], [Lease(0, 0, 2), Lease(0, 1, 3)]):
        with pytest.raises(ValueError, match="Lease"):
            book.trained(0, 1, 1, ranges)
    with pytest.raises(ValueError, match="Lease"):
        book.trained(1, 1, 1, [Lease(0, 0, 1)])
    assert repr(book) == before


def test_a_worker_that_waits_gets_what_comes_back() -> None:
    book = book_with(0, 1)
    assert book.lease(0, 1, ask(count=6)) == Lease(0, 0, 6)
    assert book.lease(1, 1, ask(count=6)) == Lease(0, 6, 10)
    book.trained(1, 1, 1, [Lease(0, 6, 10)])
    book.merged(1)
    assert book.lease(1, 1, ask(waits=True)) is NoLease.WAIT
    assert not book.is_over
    book.left(0, 1)
    assert book.lease(1, 1, ask(count=6, waits=True)) == Lease(0, 0, 6)
    book.trained(1, 1, 2, [Lease(0, 0, 6)])
    assert book.lease(1, 1, ask(waits=True)) is NoLease.WAIT  # it may be dropped
    book.merged(2)
    assert book.is_over
    assert book.lease(1, 1, ask(waits=True)) is NoLease.OVER


def test_workers_that_wait_for_each_other_end() -> None:
    """Each has records of which its script made no step, as when it steps after every second batch."""
    book = book_with(0, 1)
    book.lease(0, 1, ask(count=5))
    book.lease(1, 1, ask(count=5))
    assert book.lease(0, 1, ask()) is NoLease.WAIT  # the loop may still have it to train
    assert book.lease(0, 1, ask(waits=True)) is NoLease.WAIT
    assert book.lease(1, 1, ask(waits=True)) is NoLease.OVER
    assert book.lease(0, 1, ask(waits=True)) is NoLease.OVER


def test_a_worker_that_got_records_while_it_waited_trains_them() -> None:
    book = book_with(0, 1)
    book.lease(0, 1, ask(count=10))
    assert book.lease(1, 1, ask(waits=True)) is NoLease.WAIT
    book.trained(0, 1, 1, [Lease(0, 0, 10)])
    book.dropped(1)
    assert book.lease(0, 1, ask(count=10, waits=True)) == Lease(0, 0, 10)
    assert book.lease(1, 1, ask(waits=True)) is NoLease.WAIT  # it was told that nothing comes


def test_where_the_number_of_epochs_is_unknown_the_book_is_never_over() -> None:
    book = book_with(0)
    book.lease(0, 1, ask(count=10, epochs=0))
    book.trained(0, 1, 1, [Lease(0, 0, 10)])
    book.merged(1)
    assert not book.is_over


def test_the_book_of_a_million_records_stays_small() -> None:
    book, million = book_with(0, 1, 2), ask(records=1_000_000, count=100)
    most, ticket = 0, 0
    while book.epoch == 0:
        for worker in range(3):
            answer = book.lease(worker, 1, million)
            if isinstance(answer, Lease):
                ticket += 1
                book.trained(worker, 1, ticket, [answer])
                book.merged(ticket) if ticket % 10 else book.dropped(ticket)
        most = max(most, len(book.state()["free"]))
    assert ticket > 10_000
    assert most <= 2
    while (answer := book.lease(0, 1, million)) is not NoLease.OVER:
        assert isinstance(answer, Lease)
        book.trained(0, 1, 1, [answer])
        book.merged(1)
    assert book.settled(0) == 1_000_000


@pytest.mark.parametrize(
    "change",
    [
        {"free": [[0, 3, 3]]},
        {"free": [[0, 0, 5]]},
        {"free": [[0, 0, 2], [0, 1, 3]]},
        {"free": [[1, 0, 2]]},
        {"position": 11},
        {"records": "10"},
        {"seed": None},
    ],
)
def test_a_damaged_state_is_refused(change: dict[str, Any]) -> None:
    book = book_with(0)
    book.lease(0, 1, ask())
    state = book.state()
    assert LeaseBook.from_state(state, same_scripts=True).state() == state
    with pytest.raises(CheckpointError, match="older checkpoint"):
        LeaseBook.from_state({**state, **change})


def test_who_asks_after_the_end_of_the_run_is_told_that_it_has_ended() -> None:
    """It was told that nothing is left: a script took the end by a target for the end of its epochs."""
    leases = Leases(LeaseBook(1), print)
    assert isinstance(leases.lease(0, 1, ask()), Lease)
    leases.did(Finish(True, "reached the target"), 1.0)
    assert leases.lease(0, 1, ask()) is NoLease.ENDED


def test_what_a_worker_set_aside_has_asked_for_since_its_last_result_is_given_to_others() -> None:
    """Where turns overlap its script goes on while its result is refused, and may get the same records again."""
    leases, half = Leases(LeaseBook(1), print), ask(8, 4)
    leases.lease(1, 1, half)
    second = leases.lease(0, 1, half)
    assert isinstance(second, Lease)
    assert leases.lease(1, 1, half) is NoLease.WAIT
    leases.did(SetAside(0, 1, "three results were refused"), 1.0)
    assert leases.lease(0, 1, half) is NoLease.OVER
    assert leases.lease(1, 1, half) == second
