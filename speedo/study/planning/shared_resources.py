"""The resources of a simulated cluster: shared cores and links, servers with a queue, pauses.

A *job* is a function that starts some work and calls its argument when the work is done. Jobs run in sequence
(`chain`) or in parallel (`together`). The timeline that provides the time is an argument.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

Then = Callable[[], None]
Job = Callable[[Then], None]


class Timeline(Protocol):
    """Virtual time in seconds, and the events that are scheduled."""

    now: float

    def at(self, time: float, happening: Callable[[], None]) -> None: ...


class Shared:
    """`servers` equal servers, shared evenly by the present jobs: the cores of a machine, one direction of a link.

    A job alone is served at speed 1. With every server busy each is slower by `slowdown`, as are cores that share
    memory and caches; in between the slowdown grows linearly. `taken` of a server is reserved for other work.
    """

    def __init__(
        self, timeline: Timeline, servers: int = 1, slowdown: float = 1.0, taken: float = 0.0
    ) -> None:
        self._timeline, self._servers, self._slowdown = timeline, servers, slowdown
        self._most = servers - taken
        self._jobs: list[tuple[float, int, Then]] = []  # by the share at which each is done
        self._speeds: list[float] = []  # of one of this many present jobs, from one on
        self._share = 0.0  # seconds of service that each job present from the start would have had
        self._since = 0.0
        self._count = self._plan = 0
        self._busy = 0.0

    def job(self, seconds: float) -> Job:
        """A job that takes this many seconds if it is alone."""

        def begin(then: Then) -> None:
            self._advance()
            self._count += 1
            heapq.heappush(self._jobs, (self._share + seconds, self._count, then))
            self._look_ahead()

        return begin

    def slowed(self, present: int) -> float:
        """How many times slower each of this many jobs is than one alone, if there is a server for each."""
        crowd = (
            (min(present, self._servers) - 1) / (self._servers - 1) if self._servers > 1 else 0.0
        )
        return 1.0 + (self._slowdown - 1.0) * crowd

    def busy(self) -> float:
        """Seconds so far in which at least one job was served."""
        self._advance()
        return self._busy

    def _speed(self) -> float:
        """The speed of one of the present jobs."""
        present = len(self._jobs)
        for more in range(len(self._speeds) + 1, present + 1):
            self._speeds.append(min(more, self._most) / more / self.slowed(more))
        return self._speeds[present - 1]

    def _advance(self) -> None:
        now = self._timeline.now
        if now == self._since:
            return
        if self._jobs:
            self._share += (now - self._since) * self._speed()
            self._busy += now - self._since
        self._since = now

    def _look_ahead(self) -> None:
        """Schedule the end of the next job, in case none begins or ends before."""
        self._plan += 1
        if self._jobs:
            plan = self._plan
            left = max(0.0, self._jobs[0][0] - self._share)
            self._timeline.at(self._since + left / self._speed(), partial(self._wake, plan))

    def _wake(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        # The clock's rounding must not leave a rest that is too small to move it.
        self._share = max(self._share, self._jobs[0][0])
        done = []
        while self._jobs and self._jobs[0][0] <= self._share:
            done.append(heapq.heappop(self._jobs)[2])
        self._look_ahead()
        for then in done:
            then()


class Queue:
    """One server that serves jobs in order of arrival."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._waiting: deque[tuple[Job, Then]] = deque()
        self._began: float | None = None
        self._busy = 0.0

    def job(self, work: Job) -> Job:
        """A job that begins when the server is free for it."""

        def begin(then: Then) -> None:
            self._waiting.append((work, then))
            if self._began is None:
                self._next()

        return begin

    def busy(self) -> float:
        """Seconds so far in which it served."""
        return self._busy + (0.0 if self._began is None else self._timeline.now - self._began)

    def _next(self) -> None:
        self._began = self._timeline.now
        work, then = self._waiting.popleft()

        def done() -> None:
            assert self._began is not None
            self._busy += self._timeline.now - self._began
            self._began = None
            if self._waiting:
                self._next()
            then()

        work(done)


def pause(timeline: Timeline, seconds: float) -> Job:
    """A job that only waits."""

    def begin(then: Then) -> None:
        if seconds > 0.0:
            timeline.at(timeline.now + seconds, then)
        else:
            then()

    return begin


def chain(*jobs: Job) -> Job:
    """Run jobs one after another."""

    def begin(then: Then) -> None:
        rest = iter(jobs)

        def following() -> None:
            job = next(rest, None)
            then() if job is None else job(following)

        following()

    return begin


def together(*jobs: Job) -> Job:
    """Run jobs in parallel; done when the last is done."""

    def begin(then: Then) -> None:
        left = len(jobs)

        def one_is_done() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                then()

        for job in jobs:
            job(one_is_done)

    return begin


def aside(job: Job) -> Job:
    """Begin it, and wait for nothing."""

    def begin(then: Then) -> None:
        job(lambda: None)
        then()

    return begin


@dataclass(frozen=True, slots=True)
class Keeper:
    """Who keeps the center, or a range of it: the machine, the one thread of its Redis, and of its own process."""

    machine: int
    redis: Queue
    process: Queue
