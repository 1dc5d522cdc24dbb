"""What shares and what waits, in numbers that can be worked out by hand."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest

from speedo.study.planning.shared_resources import Job, Queue, Shared, chain, pause, together


class Clock:
    """A timeline of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, happening: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, happening))

    def ends(self, *jobs: tuple[float, Job]) -> list[float]:
        """When each of these jobs, begun at their times, was over."""
        found = [0.0] * len(jobs)

        def over(number: int) -> None:
            found[number] = self.now

        for number, (time, job) in enumerate(jobs):
            self.at(time, lambda job=job, number=number: job(lambda: over(number)))  # type: ignore[misc]
        while self._heap:
            self.now, _, happening = heapq.heappop(self._heap)
            happening()
        return [round(one, 9) for one in found]


def test_fewer_jobs_than_servers_do_not_disturb_each_other() -> None:
    clock = Clock()
    cores = Shared(clock, 2)
    assert clock.ends((0.0, cores.job(3.0)), (1.0, cores.job(1.0))) == [3.0, 2.0]


def test_more_jobs_than_servers_share_them_evenly() -> None:
    """Three on two cores go at two thirds; when the short one is gone the others have a core each."""
    clock = Clock()
    cores = Shared(clock, 2)
    ends = clock.ends((0.0, cores.job(2.0)), (0.0, cores.job(3.0)), (0.0, cores.job(3.0)))
    assert ends == [3.0, 4.0, 4.0]


def test_a_job_that_comes_later_slows_the_one_that_is_there() -> None:
    clock = Clock()
    link = Shared(clock)
    assert clock.ends((0.0, link.job(2.0)), (1.0, link.job(2.0))) == [3.0, 4.0]


def test_cores_that_are_all_at_work_are_slower_each() -> None:
    clock = Clock()
    cores = Shared(clock, 3, slowdown=2.0)
    assert clock.ends((0.0, cores.job(1.0))) == [1.0]
    clock = Clock()
    cores = Shared(clock, 3, slowdown=2.0)
    assert clock.ends((0.0, cores.job(1.0)), (0.0, cores.job(1.0))) == [1.5, 1.5]
    clock = Clock()
    cores = Shared(clock, 3, slowdown=2.0)
    assert clock.ends(*[(0.0, cores.job(1.0))] * 3) == [2.0, 2.0, 2.0]


def test_a_queue_serves_one_after_another() -> None:
    clock = Clock()
    queue = Queue(clock)
    jobs = [queue.job(pause(clock, 1.0)) for _ in range(3)]
    assert clock.ends((0.0, jobs[0]), (0.5, jobs[1]), (5.0, jobs[2])) == [1.0, 2.0, 6.0]
    assert queue.busy() == pytest.approx(3.0)


def test_busy_counts_the_time_with_at_least_one_job() -> None:
    clock = Clock()
    cores = Shared(clock, 2)
    clock.ends((0.0, cores.job(2.0)), (1.0, cores.job(2.0)), (10.0, cores.job(1.0)))
    assert cores.busy() == pytest.approx(4.0)


def test_a_chain_adds_and_side_by_side_waits_for_the_last() -> None:
    clock = Clock()
    one, two = pause(clock, 1.0), pause(clock, 2.0)
    whole = chain(one, together(one, two), one)
    ends = clock.ends(
        (0.0, chain(one, two)), (0.0, together(one, two)), (0.0, whole), (0.0, chain())
    )
    assert ends == [3.0, 2.0, 4.0, 0.0]
