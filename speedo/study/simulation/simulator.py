"""A cluster in one process with a virtual clock: seeded latencies, speeds and faults.

Coordinator, center, strategies and the worker's turn are the real ones, over the in-memory store;
only time, the network and the model (a quadratic) are made up. The same seed replays to the byte.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import MissingKeyError, PayloadError, TeamBrokenError, TrainingStopped
from speedo.exchange.channel import refusal
from speedo.exchange.served_vectors import Stores
from speedo.messages import (
    Command,
    Event,
    Joined,
    Leaving,
    Left,
    Refused,
    SaveState,
    StateSaved,
    Team,
    Tested,
    Train,
    Trained,
)
from speedo.storage import keys
from speedo.storage.memory_store import MemoryStore
from speedo.study.simulation.poison import poison
from speedo.study.simulation.simulated_servers import SimulatedHosts
from speedo.study.simulation.simulated_shares import SimulatedShares
from speedo.study.simulation.simulated_team import Memories, train_together
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
        servers: Sequence[MemoryStore] = (),
        hosts: SimulatedHosts | None = None,
    ) -> None:
        """`store` has all, or each of `servers` has a range."""
        self.world, self.store, self.run, self.engine = world, store, run, engine
        self.servers = [Stores(server) for server in servers]
        self.hosts = hosts or SimulatedHosts(None)
        self.overlap = overlap
        self.random = random.Random(seed)
        self._gathering = random.Random(seed)
        self._first: Event | None = None
        self.gathered = 0  # of the events handed to the driver last, without the first and tests
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], Event | None]]] = []
        self._count = 0
        self._workers: dict[int, EngineWorker] = {}
        self._busy: dict[tuple[int, int], float] = {}  # worker and incarnation, until when
        self._incarnations: dict[int, int] = {}
        self.places: Callable[[int], str] = lambda worker: ""  # where a worker can meet its team
        self.can_meet = self.hosts_can_meet = True
        self._teams: dict[int, dict[int, Train]] = {}  # commands of a stretch, by its first ticket
        self._memories: Memories = {}
        self.version: Callable[[], int] = lambda: 0
        # Every answer of a worker or the tester passes through it to the driver; a script may keep or change it.
        self.deliver: Callable[[Event], Event | None] = lambda event: event
        self.shares = SimulatedShares(world, engine, random.Random(seed))
        self._last_version, self._events = 0, 0  # events since the version last changed

    # ------------------------------------------------------------ what tests script

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

    def notice(self, worker: int) -> Event | None:
        """A worker is told now that it is to leave; it comes back as one that died."""
        if worker not in self._workers:
            return None
        self._workers[worker].leaves = lambda: True
        return Leaving(worker, self._workers[worker].incarnation, "told to leave")

    def forget(self, worker: int) -> int | None:
        """A worker is silently no longer there; returns its incarnation, if it was."""
        present = self._workers.pop(worker, None)
        return None if present is None else present.incarnation

    @property
    def present(self) -> set[int]:
        """The workers that are there."""
        return set(self._workers)

    def poison(self, worker: int, ticket: int) -> None:
        """Put a payload of NaN, well formed otherwise, in the place of the one that was published for this turn."""
        present = self._workers[worker]
        poison(present, keys.payload(self.run, worker, ticket))

    # ------------------------------------------------------------ Cluster

    def clock(self) -> float:
        return self.now

    def send(self, command: Command) -> None:
        if isinstance(command, Train):
            self._send_train(command)
        elif isinstance(command, SaveState):
            who = command.worker, command.incarnation, command.version
            saved = StateSaved(*who, problem="it has none")
            self.at(self.now + self.world.step_s, lambda: self.deliver(saved))
        else:
            self.at(self.now + self.world.step_s, lambda: self._test(command))

    def next_event(self, timeout_s: float) -> Event | None:
        self._first = self._next(timeout_s)
        if self._first is not None:
            self.now += self.world.decide_s
        return self._first

    def _next(self, timeout_s: float) -> Event | None:
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
        limit, events = self.now, list[Event]()
        if self.world.gather_s:
            limit += self.world.gather_s * self._gathering.random()
            while len(events) < most and (event := self._next(limit - self.now)) is not None:
                events.append(event)
        elif self.world.decide_s:
            while len(events) < most and (event := self._next(0.0)) is not None:
                events.append(event)
            self.now += self.world.decide_s * len(events)
        seen = [event for event in (self._first, *events) if not isinstance(event, Tested)]
        self.gathered = max(0, len(seen) - 1)
        return events

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
        engine = self.shares.engine_of(worker)
        incarnation = self._incarnations[worker] = self._incarnations.get(worker, 0) + 1
        overlaps = worker in self.overlap
        self._workers[worker] = EngineWorker(
            self.run, worker, incarnation, engine, self.store, self.clock,
            compression=self.world.compression, servers=self.servers, threads=False,
            host=self.hosts.centers(worker, max(1, len(self.servers)), self.clock), overlap=overlaps,
        )  # fmt: skip
        self.shares.give(self._workers[worker])
        depth = 1 + overlaps
        return Joined(worker, incarnation, engine.samples_per_step, depth, self.places(worker))

    def _gone(self, worker: int, cause: str) -> Event | None:
        present = self._workers.pop(worker, None)
        if present is None:
            return None
        if self.world.faults.return_s is not None:
            self.join(worker, self.now + self.world.faults.return_s)
        return Left(worker, present.incarnation, cause)

    def _send_train(self, command: Train) -> None:
        if command.team is not None:
            return self._send_to_team(command, command.team)
        worker = self._workers.get(command.worker)
        if worker is None or worker.incarnation != command.incarnation:
            return
        world, faults, chance = self.world, self.world.faults, self.random.random
        lasts = self.shares.seconds(command.worker, command.steps)
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

    def _send_to_team(self, command: Train, team: Team) -> None:
        """The turn is over for all when the slowest is done; the commands of all members come one after another."""
        first = command.ticket - team.workers.index(command.worker)
        commands = self._teams.setdefault(first, {})
        commands[command.worker] = command
        if len(commands) < len(team.members):
            return
        del self._teams[first]
        world, faults, chance = self.world, self.world.faults, self.random.random
        lasts = max(self.shares.seconds(worker, command.all_steps) for worker in commands)
        lasts *= 1.0 + world.jitter * (2.0 * chance() - 1.0)
        meetings = (5 if team.spread else 2) * team.rounds + 1
        fate = {
            worker: self.random.randrange(meetings)
            for worker in commands
            if faults.die and chance() < faults.die
        }
        poisoned = [worker for worker in commands if faults.poison and chance() < faults.poison]
        lost = [worker for worker in commands if faults.lose and chance() < faults.lose]
        again = [worker for worker in commands if faults.repeat and chance() < faults.repeat]
        done = self.now + lasts + 2 * world.latency_s
        self.at(done, lambda: self._team_turn(team, commands, fate, poisoned, lost, again, lasts))

    def _team_turn(
        self,
        team: Team,
        commands: dict[int, Train],
        fate: dict[int, int],
        poisoned: list[int],
        lost: list[int],
        again: list[int],
        lasts: float,
    ) -> None:
        workers = {
            worker: self._workers[worker]
            for worker, incarnation, _ in team.members
            if worker in self._workers and self._workers[worker].incarnation == incarnation
        }
        if not workers:
            return
        if self.can_meet and (self.hosts_can_meet or not team.spread):
            answers = train_together(
                *(team, workers, commands, fate, poisoned),
                chance=self._gathering,
                memories=self._memories,
            )
        else:
            broken = TeamBrokenError("a member of the team cannot be reached")
            answers = {worker: refusal(commands[worker], broken) for worker in workers}
        for worker in fate:
            if worker in workers:
                notice = partial(self._gone_if, workers[worker])
                self.at(self.now + self.world.faults.notice_s, notice)
        for worker, answer in answers.items():
            if isinstance(answer, Trained):
                timings = self.shares.timings(worker, commands[worker].all_steps, lasts)
                answer = replace(answer, timings=timings)
            if worker not in lost:
                self.at(self.now, partial(self._answer, workers[worker], answer))
            if worker in again:
                self.at(self.now + self.world.latency_s, partial(self._answer, None, answer))

    def _gone_if(self, worker: EngineWorker) -> Event | None:
        return self._gone(worker.worker, "killed") if self._present(worker) else None

    def _answer(self, worker: EngineWorker | None, answer: Trained | Refused) -> Event | None:
        """It reaches the master if its worker is still there; a repetition in any case."""
        return answer if worker is None or self._present(worker) else None

    def _present(self, worker: EngineWorker) -> bool:
        return self._workers.get(worker.worker) is worker

    def _turn(
        self, worker: EngineWorker, command: Train, poisoned: bool = False, again: bool = False
    ) -> Event | None:
        if not self._present(worker):
            return None
        result = self.shares.timed(self.outcome(worker, command), command.steps)
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
