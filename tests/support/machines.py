"""Machines of a simulated cluster that share a Redis: processes with clocks of their own, and a network that fails.

Each process is a thread, of which one runs at a time: before it asks Redis, whoever is behind it in time goes on. So a
run replays from its seed.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from speedo.errors import FencedError, SpeedoError, StoreTimeoutError
from speedo.storage import keys
from speedo.storage.base import Arrived
from speedo.storage.conditional import Guard, Smalls
from speedo.storage.memory_store import Blob, MemoryStore
from tests.support.conditional_memory import Answer, ConditionalMemory
from tests.support.simulation.simulator import SimulatedCluster

Blobs = Mapping[str, Blob]
NONE: Blobs = MappingProxyType({})


class KilledError(Exception):
    """The process is no more."""


class _StoppedError(BaseException):
    """Another process has failed: the test is over."""


class Process:
    """A thread with a clock: that of its `cluster`, once it has one."""

    def __init__(self, works: Clockwork, machine: Machine, now: float) -> None:
        self.works, self.machine, self._now = works, machine, now
        self.number = works.count()
        self.cluster: SimulatedCluster | None = None
        self.is_killed = self.has_ended = False
        self.baton = threading.Event()

    @property
    def now(self) -> float:
        return self._now if self.cluster is None else self.cluster.now

    @now.setter
    def now(self, now: float) -> None:
        if self.cluster is None:
            self._now = now
        else:
            self.cluster.now = now

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.works.turn(self)

    def hazard(self) -> None:
        """It may be stopped for a while here, or killed."""
        chance, now = self.works.chance, self.now
        if self.is_killed:
            raise KilledError
        if now < self.works.heals_at:
            if chance.random() < self.machine.stops_often:
                self.works.counts["pauses"] += 1
                self.now += chance.choice((0.2, 2.0, 6.0, 8.0, 30.0))
            if chance.random() < self.machine.dies_often:
                self.works.counts["kills"] += 1
                raise KilledError


@dataclass
class Machine:
    """A host; `outages` are (begin, end, whether requests are lost, whether answers are lost)."""

    name: str
    outages: list[tuple[float, float, bool, bool]] = field(default_factory=list)
    slow_often: float = 0.0  # requests that arrive long after they were given up
    stops_often: float = 0.0
    dies_often: float = 0.0

    def lost(self, now: float) -> tuple[bool, bool]:
        """Whether a request that is sent now is lost, and whether an answer that is."""
        there = [one for one in self.outages if one[0] <= now < one[1]]
        return any(one[2] for one in there), any(one[3] for one in there)


class Clockwork:
    """Lets processes go on in the order of their clocks. Nothing fails after `heals_at`; all is over by `limit`."""

    def __init__(self, chance: random.Random, heals_at: float, limit: float) -> None:
        self.chance, self.heals_at, self.limit = chance, heals_at, limit
        self.time = 0.0
        self.counts: Counter[str] = Counter()
        self._numbers = 0
        self._live: list[Process] = []
        self._late: list[tuple[float, int, Callable[[], object]]] = []
        self._error: BaseException | None = None
        self._over = threading.Event()

    def count(self) -> int:
        self._numbers += 1
        return self._numbers

    def start(self, process: Process, body: Callable[[], None]) -> None:
        """It begins once it is its turn."""

        def whole() -> None:
            process.baton.wait()
            process.baton.clear()
            try:
                if self._error is None:
                    with suppress(KilledError):
                        body()
            except _StoppedError:
                pass
            except BaseException as error:
                self._error = self._error or error
            process.has_ended = True
            self._live.remove(process)
            if self._live:
                self._first().baton.set()
            else:
                self._over.set()

        self._live.append(process)
        threading.Thread(target=whole, daemon=True).start()

    def run(self) -> None:
        """Until all have ended. Raises what one of them has raised."""
        self._first().baton.set()
        assert self._over.wait(600)
        if self._error is not None:
            raise self._error

    def later(self, time: float, what: Callable[[], object]) -> None:
        """The network does this then, and nobody hears of it."""
        heapq.heappush(self._late, (time, self.count(), what))

    def turn(self, me: Process) -> None:
        """Returns once nobody is behind this process."""
        first = self._first()
        if first is not me:
            first.baton.set()
            me.baton.wait()
            me.baton.clear()
        if self._error is not None:
            raise _StoppedError
        assert me.now < self.limit, "nobody has ended the run, long after all was healed"
        while self._late and self._late[0][0] <= me.now:
            self.time, _, happening = heapq.heappop(self._late)
            with suppress(SpeedoError):
                happening()
        self.time = max(self.time, me.now)

    def _first(self) -> Process:
        return min(self._live, key=lambda one: (one.now, one.number))


class Link(ConditionalMemory):
    """A process's connection to the Redis `server`, over the network. `saw` hears of each entry of the journal."""

    def __init__(
        self,
        server: ConditionalMemory,
        process: Process,
        timeout_s: float,
        guard: Guard | None = None,
        saw: Callable[[bytes, Blobs], None] = lambda entry, blobs: None,
    ) -> None:
        super().__init__(clock=lambda: process.works.time)
        self._blobs, self._smalls, self._writes = server._blobs, server._smalls, server._writes
        self._process, self._timeout_s, self._saw = process, timeout_s, saw
        self.guard = guard

    def carry(self, step: Callable[[], Answer]) -> Answer:
        return self._carry(step, may_be_late=True)

    def _carry(self, step: Callable[[], Answer], *, may_be_late: bool) -> Answer:
        process, works = self._process, self._process.works
        process.hazard()
        works.turn(process)
        request_lost, answer_lost = process.machine.lost(process.now)
        late = process.now < works.heals_at and works.chance.random() < process.machine.slow_often
        if late and may_be_late:
            works.counts["late"] += 1
            works.later(process.now + works.chance.choice((0.5, 3.0, 12.0, 40.0)), step)
        if request_lost or late:
            works.counts["lost"] += 1
            self._give_up()
        process.sleep(works.chance.choice((0.0, 0.001, 0.02)))
        answer = step()
        if answer_lost:
            works.counts["lost"] += 1
            self._give_up()
        process.hazard()
        return answer

    def _give_up(self) -> None:
        self._process.sleep(self._timeout_s)
        raise StoreTimeoutError("Redis did not answer in time")

    def _put_if(
        self, names: tuple[str, ...], writes: list[int], wanted: Smalls, blobs: Blobs = NONE
    ) -> bool:
        done = super()._put_if(names, writes, wanted, blobs)
        if not done:
            self._process.works.counts["conflicts"] += 1
        elif self.guard is not None and (entry := wanted.get(keys.journal(self.guard.run))):
            self._saw(entry.data, blobs)
        return done

    def _write_guarded(self, guard: Guard, key: str, blob: Blob) -> None:
        try:
            super()._write_guarded(guard, key, blob)
        except FencedError:
            self._process.works.counts["fenced writes"] += 1
            raise

    def read_head(self, key: str) -> tuple[bytes, int]:
        return self._carry(lambda: MemoryStore.read_head(self, key), may_be_late=False)

    def read(self, key: str, into: memoryview, arrived: Arrived | None = None) -> bytes:
        return self._carry(lambda: MemoryStore.read(self, key, into), may_be_late=False)

    def delete(self, *names: str) -> None:
        self._carry(lambda: MemoryStore.delete(self, *names), may_be_late=True)

    def keys(self, prefix: str) -> list[str]:
        return self._carry(lambda: MemoryStore.keys(self, prefix), may_be_late=False)
