"""A cluster in one process with a virtual clock: seeded latencies, speeds and faults.

Coordinator, center, strategies and the worker's turn are the real ones, over the in-memory store;
only time, the network and the model (a quadratic) are made up. The same seed replays to the byte.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Final

from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import MissingKeyError, PayloadError, TrainingStopped
from speedo.exchange.vector import Header, checksum
from speedo.messages import Command, Event, Joined, Left, Refused, Tested, Train, Trained
from speedo.storage import keys
from speedo.storage.memory_store import MemoryStore
from speedo.study.simulation.world import World
from speedo.worker.turn import EngineWorker

MOST_EVENTS: Final = 100_000  # without a merge: a round of 1,000 workers needs some 10,000


class SimulatedCluster:
    """Implements `speedo.master.cluster.Cluster` over a heap of things to come; chance comes from one seed."""

    def __init__(
        self,
        world: World,
        store: MemoryStore,
        run: str,
        engine: Callable[[int], QuadraticEngine],
        seed: int,
        overlap: Container[int] = (),
    ) -> None:
        self.world, self.store, self.run, self.engine = world, store, run, engine
        self.overlap = overlap
        self.random = random.Random(seed)
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], Event | None]]] = []
        self._count = 0
        self._workers: dict[int, EngineWorker] = {}
        self._busy: dict[tuple[int, int], float] = {}  # worker and incarnation, until when
        self._incarnations: dict[int, int] = {}
        self.places: Callable[[int], str] = lambda worker: ""  # where a worker can meet its team
        self.version: Callable[[], int] = lambda: 0
        # Every answer of a worker or the tester passes through it to the driver; a script may keep or change it.
        self.deliver: Callable[[Event], Event | None] = lambda event: event
        self._last_version, self._events = 0, 0  # events since the version last changed

    # ------------------------------------------------------------ what a script says

    def at(self, time: float, happening: Callable[[], Event | None]) -> None:
        """Something happens at this time; what it returns reaches the driver then."""
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, happening))

    def join(self, worker: int, time: float = 0.0) -> None:
        """A worker joins at this time, in the next incarnation of its slot."""
        self.at(time, lambda: self._join(worker))

    def die(self, worker: int, time: float, cause: str = "killed") -> None:
        """A worker dies at this time, which is noticed at once."""
        self.at(time, lambda: self._gone(worker, cause))

    def poison(self, worker: int, ticket: int) -> None:
        """Put a payload of NaN, well formed otherwise, in the place of the one that was published for this turn."""
        present, key = self._workers[worker], keys.payload(self.run, worker, ticket)
        vector = present.engine.layout.zeros()
        vector.fill(float("nan"))
        for store, body in zip(present.stores, present.exchange.encode(vector, None), strict=False):
            header = Header.unpack(store.incoming.read_head(key)[0])
            store.incoming.write(key, replace(header, checksum=checksum(body)).pack(), body)

    # ------------------------------------------------------------ Cluster

    def clock(self) -> float:
        return self.now

    def send(self, command: Command) -> None:
        if isinstance(command, Train):
            self._send_train(command)
        else:
            self.at(self.now + self.world.step_s, lambda: self._test(command))

    def next_event(self, timeout_s: float) -> Event | None:
        limit = self.now + timeout_s
        self._require_progress()
        while self._heap and self._heap[0][0] <= limit:
            self._require_progress()
            time, _, happening = heapq.heappop(self._heap)
            self.now = max(self.now, time)  # what happened while the master was busy waited for it
            event = happening()
            if event is not None:
                return event
        self.now = limit
        return None

    def waiting(self, most: int) -> list[Event]:
        """None: each event is handed over alone."""
        return []

    def evict(self, worker: int, incarnation: int, reason: str, *, for_good: bool = False) -> None:
        present = self._workers.get(worker)
        if present is not None and present.incarnation == incarnation:
            del self._workers[worker]
            if self.world.faults.return_s is not None:
                self.join(worker, self.now + self.world.faults.return_s)

    # ------------------------------------------------------------ inside

    def _require_progress(self) -> None:
        """Raise `TrainingStopped` after very many events without a merge: such a run would never end."""
        version = self.version()
        if version != self._last_version:
            self._last_version, self._events = version, 0
        self._events += 1
        if self._events > MOST_EVENTS:
            raise TrainingStopped(
                f"the simulated run makes no progress: {MOST_EVENTS} events since version {version}, "
                f"at {self.now:.1f} s"
            )

    def _join(self, worker: int) -> Event | None:
        if worker in self._workers:
            return None
        incarnation = self._incarnations[worker] = self._incarnations.get(worker, 0) + 1
        made = self._workers[worker] = self._made(worker, incarnation)
        depth = 1 + (worker in self.overlap)
        samples = made.engine.samples_per_step
        return Joined(worker, incarnation, samples, depth, self.places(worker))

    def _made(self, worker: int, incarnation: int) -> EngineWorker:
        return EngineWorker(
            self.run, worker, incarnation, self.engine(worker), self.store, self.clock, threads=False,
            overlap=worker in self.overlap,
        )  # fmt: skip

    def _gone(self, worker: int, cause: str) -> Event | None:
        present = self._workers.pop(worker, None)
        if present is None:
            return None
        if self.world.faults.return_s is not None:
            self.join(worker, self.now + self.world.faults.return_s)
        return Left(worker, present.incarnation, cause)

    def _send_train(self, command: Train) -> None:
        worker = self._workers.get(command.worker)
        if worker is None or worker.incarnation != command.incarnation:
            return
        world, faults, chance = self.world, self.world.faults, self.random.random
        lasts = self._seconds(command.worker, command.steps)
        lasts *= 1.0 + world.jitter * (2.0 * chance() - 1.0)
        who = command.worker, command.incarnation
        done = max(self.now, self._busy.get(who, 0.0)) + lasts + 2 * world.latency_s
        self._busy[who] = done
        if faults.die and chance() < faults.die:
            pushed = chance() < 0.5
            self.at(done, lambda: self._die_in_turn(worker, command, pushed))
        elif faults.lose and chance() < faults.lose:
            self.at(done, lambda: self._turn(worker, command) and None)  # without its message
        elif faults.late and chance() < faults.late:
            self.at(done, lambda: self._late(worker, command))
        elif faults.leave and chance() < faults.leave:
            self.at(done, lambda: self._gone(worker.worker, "leaves by itself"))
        elif faults.fail and chance() < faults.fail:
            self.at(done, lambda: self._fail(worker, command))
        else:
            poisoned = faults.poison > 0 and chance() < faults.poison
            again = faults.repeat > 0 and chance() < faults.repeat
            self.at(done, lambda: self._turn(worker, command, poisoned, again))

    def _seconds(self, worker: int, steps: int) -> float:
        """What so many steps take this worker."""
        return self.world.step_s * steps * self.world.slowness(worker)

    def _timed(self, result: Trained | Refused, command: Train) -> Trained | Refused:
        """The result with what its turn took, where somebody needs that."""
        return result

    def _present(self, worker: EngineWorker) -> bool:
        return self._workers.get(worker.worker) is worker

    def _turn(
        self, worker: EngineWorker, command: Train, poisoned: bool = False, again: bool = False
    ) -> Event | None:
        if not self._present(worker):
            return None
        result = self._timed(self.outcome(worker, command), command)
        if poisoned and isinstance(result, Trained):
            self.poison(worker.worker, command.ticket)
        if again:
            self.at(self.now + self.world.latency_s, lambda: result)
        return self.deliver(result)

    def outcome(self, worker: EngineWorker, command: Train) -> Trained | Refused:
        """Carry the turn out. One that was given ahead of a turn that failed fails, too."""
        try:
            return worker.turn(command)
        except (PayloadError, MissingKeyError) as error:
            return Refused(command.worker, command.incarnation, command.ticket, str(error), False)

    def _fail(self, worker: EngineWorker, command: Train) -> Refused | None:
        if not self._present(worker):
            return None
        return Refused(worker.worker, worker.incarnation, command.ticket, "the engine failed")

    def _die_in_turn(self, worker: EngineWorker, command: Train, pushed: bool) -> None:
        if not self._present(worker):
            return
        if pushed:
            self.outcome(worker, command)
        self.at(
            self.now + self.world.faults.notice_s,
            lambda: self._gone(worker.worker, "killed") if self._present(worker) else None,
        )

    def _late(self, worker: EngineWorker, command: Train) -> Event | None:
        """The worker is given up; its result comes all the same, a while later."""
        result = self._turn(worker, command)
        if result is None:
            return None
        self.at(self.now + 5 * self.world.step_s, lambda: result)
        return self._gone(worker.worker, "cut off")

    def _test(self, command: Command) -> Event | None:
        return self.deliver(Tested(command.version, {"version": float(command.version)}))
