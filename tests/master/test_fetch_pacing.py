"""Workers that fetch one after another over a shared cable, and at once over cables of their own."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest

from speedo.master.fetch_pacing import AGAIN, LEAST_S, READS, SETTLING, Pace, covered
from speedo.study.planning.shared_resources import Shared

TRANSFER_S, COMPUTE_S = 0.015, 0.024


class Clock:
    """Virtual time; what is to happen, in its order."""

    def __init__(self) -> None:
        self.now, self._heap, self._count = 0.0, list[tuple[float, int, Callable[[], None]]](), 0

    def at(self, time: float, happening: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, happening))

    def run_until(self, time: float) -> None:
        while self._heap and self._heap[0][0] <= time:
            self.now, _, happening = heapq.heappop(self._heap)
            happening()


class Cluster:
    """Workers that fetch, compute and send for ever, over one cable each way or each over its own."""

    def __init__(self, workers: int, pace: Pace, *, shared: bool, rounds: bool) -> None:
        self.clock, self.pace, self.rounds, self.workers = Clock(), pace, rounds, workers
        cables = 1 if shared else workers
        self.down, self.up = ([Shared(self.clock) for _ in range(cables)] for _ in range(2))
        self.random = random.Random(1)
        self.results = self.held = 0
        for worker in range(workers):
            self.train(worker)

    def train(self, worker: int) -> None:
        start = self.pace.start(self.clock.now)
        self.clock.at(start, lambda: self.fetch(worker, start))

    def fetch(self, worker: int, start: float) -> None:
        def fetched() -> None:
            seconds = self.clock.now - start
            step = COMPUTE_S * self.random.uniform(0.9, 1.1)
            self.clock.at(self.clock.now + step, lambda: self.send(worker, start, seconds))

        self.down[worker % len(self.down)].job(TRANSFER_S)(fetched)

    def send(self, worker: int, start: float, seconds: float) -> None:
        def sent() -> None:
            self.pace.fetched(start, seconds)
            self.results += 1
            self.held += 1
            if not self.rounds:
                self.train(worker)
            elif self.held == self.workers:
                self.held = 0
                for one in range(self.workers):
                    self.train(one)

        self.up[worker % len(self.up)].job(TRANSFER_S)(sent)

    def turn_s(self, seconds: float = 20.0) -> float:
        """Seconds of a turn of each worker, in the steady state."""
        self.clock.run_until(self.clock.now + seconds)
        before = self.results
        self.clock.run_until(self.clock.now + seconds)
        return seconds * self.workers / (self.results - before)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_round_over_a_shared_cable_lasts_one_transfer_more_than_there_are_workers(
    workers: int,
) -> None:
    at_once = Cluster(workers, Pace(known=True), shared=True, rounds=True).turn_s()
    paced = Cluster(workers, Pace(), shared=True, rounds=True).turn_s()
    assert at_once == pytest.approx(2 * workers * TRANSFER_S + COMPUTE_S, rel=0.05)
    assert paced == pytest.approx((workers + 1) * TRANSFER_S + COMPUTE_S, rel=0.12)


def test_two_that_met_at_every_turn_meet_no_more() -> None:
    at_once = Cluster(2, Pace(known=True), shared=True, rounds=False).turn_s(2.0)
    paced = Cluster(2, Pace(), shared=True, rounds=False).turn_s()
    assert at_once > 1.15 * paced
    assert paced == pytest.approx(2 * TRANSFER_S + COMPUTE_S, rel=0.1)


@pytest.mark.parametrize("rounds", [True, False])
def test_where_each_has_its_own_cable_nobody_waits(rounds: bool) -> None:
    cluster = Cluster(4, Pace(), shared=False, rounds=rounds)
    free = Cluster(4, Pace(known=True), shared=False, rounds=rounds)
    assert cluster.turn_s() == pytest.approx(free.turn_s(), rel=0.03)


def test_short_transfers_are_not_paced() -> None:
    pace = Pace()
    for number in range(10 * (READS + SETTLING)):
        pace.fetched(float(number // 2), 1.9 * LEAST_S)
    assert pace.gap == 0.0


def test_a_cable_that_gets_faster_is_noticed() -> None:
    """The gap follows what fetches take, and is given up where they take next to nothing."""
    pace = Pace()
    feed(pace, 1, each=0.1, alone=0.05)
    feed(pace, 1, each=0.05, alone=0.05)
    assert pace.gap == pytest.approx(0.05)
    feed(pace, 1, each=0.03, alone=0.03)
    assert pace.gap == pytest.approx(0.03)
    feed(pace, 1, each=0.5 * LEAST_S, alone=0.5 * LEAST_S)
    assert pace.gap == 0.0


def test_what_was_found_is_looked_at_anew_now_and_then() -> None:
    pace = Pace()
    feed(pace, 1, each=0.1, alone=0.05)
    feed(pace, AGAIN, each=0.05, alone=0.05)
    assert pace.gap > 0.0
    feed(pace, 1, each=0.05, alone=0.05)
    assert pace.gap == 0.0


def test_a_pace_begins_without_a_wait() -> None:
    pace = Pace()
    assert [pace.start(0.5), pace.start(0.5), pace.gap] == [0.5, 0.5, 0.0]


@pytest.mark.parametrize(("each", "gap"), [(0.0625, 0.0625), (0.064, 0.0)])
def test_waiting_is_kept_if_half_of_what_was_to_be_gained_is(each: float, gap: float) -> None:
    """Two at once took 3/32 s each; alone that is half, and half of this gain is 2/32 s each."""
    pace = Pace()
    feed(pace, 1, each=0.09375, alone=0.046875)
    assert pace.gap == 0.046875
    feed(pace, 1, each=each, alone=each)
    assert pace.gap == pytest.approx(gap)


def test_a_wait_that_gained_nothing_is_tried_again_after_forty_conclusions() -> None:
    pace = Pace()
    feed(pace, 2, each=0.1, alone=0.05)
    assert pace.gap == 0.0
    feed(pace, AGAIN, each=0.1, alone=0.05)
    assert pace.gap == 0.0
    feed(pace, 1, each=0.1, alone=0.05)
    assert pace.gap == pytest.approx(0.05)


def test_a_fetch_that_waited_for_something_else_says_nothing() -> None:
    pace = Pace()
    feed(pace, 1, each=0.1, alone=0.05)
    for number in range(SETTLING + READS):
        pace.fetched(1e6 + number, 5.0 if number % 10 == 9 else 0.05)
    assert pace.gap == pytest.approx(0.05)


def test_fetches_follow_one_another_by_the_gap() -> None:
    pace = Pace(0.5, known=True)
    assert [pace.start(now) for now in (1.0, 1.1, 1.2, 9.0)] == [1.0, 1.5, 2.0, 9.0]


def test_time_that_several_cover_counts_once() -> None:
    assert covered([(0.0, 2.0), (1.0, 2.0), (5.0, 1.0), (5.2, 0.1)]) == pytest.approx(4.0)


def feed(pace: Pace, conclusions: int, *, each: float, alone: float) -> None:
    """Fetches in pairs that take so long `each`, and would by themselves take `alone`."""
    together = round(each / alone)
    for number in range(conclusions * (SETTLING + READS)):
        pace.fetched(1.0 * (number // together), each)
