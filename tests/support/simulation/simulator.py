"""The simulated cluster of the tests: also teams, servers, hosts, shares of a batch, events that wait together."""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial

from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import TeamBrokenError
from speedo.exchange.channel import refusal
from speedo.exchange.served_vectors import Stores
from speedo.messages import (
    Command,
    Event,
    Leaving,
    Refused,
    SaveState,
    StateSaved,
    Team,
    Tested,
    Train,
    Trained,
)
from speedo.storage.memory_store import MemoryStore
from speedo.study.simulation import simulator
from speedo.study.simulation.simulated_team import Memories, train_together
from speedo.worker.turn import EngineWorker
from tests.support.simulation.simulated_servers import SimulatedHosts
from tests.support.simulation.simulated_shares import SimulatedShares
from tests.support.simulation.spoilt import spoil
from tests.support.simulation.world import World


class SimulatedCluster(simulator.SimulatedCluster):
    """`store` has all, or each of `servers` has a range."""

    world: World

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
        super().__init__(world, store, run, engine, seed, overlap)
        self.servers = [Stores(server) for server in servers]
        self.hosts = hosts or SimulatedHosts(None)
        self._gathering = random.Random(seed)
        self._first: Event | None = None
        self.gathered = 0  # of the events handed to the driver last, without the first and tests
        self.can_meet = self.hosts_can_meet = True
        self._teams: dict[int, dict[int, Train]] = {}  # commands of a stretch, by its first ticket
        self._memories: Memories = {}
        self.shares = SimulatedShares(world, engine, random.Random(seed))

    # ------------------------------------------------------------ what tests script

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

    # ------------------------------------------------------------ Cluster

    def send(self, command: Command) -> None:
        if isinstance(command, SaveState):
            who = command.worker, command.incarnation, command.version
            saved = StateSaved(*who, problem="it has none")
            self.at(self.now + self.world.step_s, lambda: self.deliver(saved))
        else:
            super().send(command)

    def next_event(self, timeout_s: float) -> Event | None:
        self._first = super().next_event(timeout_s)
        if self._first is not None:
            self.now += self.world.decide_s
        return self._first

    def waiting(self, most: int) -> list[Event]:
        limit, events = self.now, list[Event]()
        if self.world.gather_s:
            limit += self.world.gather_s * self._gathering.random()
            while (
                len(events) < most and (event := super().next_event(limit - self.now)) is not None
            ):
                events.append(event)
        elif self.world.decide_s:
            while len(events) < most and (event := super().next_event(0.0)) is not None:
                events.append(event)
            self.now += self.world.decide_s * len(events)
        seen = [event for event in (self._first, *events) if not isinstance(event, Tested)]
        self.gathered = max(0, len(seen) - 1)
        return events

    # ------------------------------------------------------------ inside

    def _made(self, worker: int, incarnation: int) -> EngineWorker:
        hosts = self.hosts.centers(worker, max(1, len(self.servers)), self.clock)
        made = EngineWorker(
            self.run, worker, incarnation, self.shares.engine_of(worker), self.store, self.clock,
            compression=self.world.compression, servers=self.servers, threads=False, host=hosts,
            overlap=worker in self.overlap,
        )  # fmt: skip
        self.shares.give(made)
        return made

    def _seconds(self, worker: int, steps: int) -> float:
        return self.shares.seconds(worker, steps)

    def _timed(self, result: Trained | Refused, command: Train) -> Trained | Refused:
        return self.shares.timed(result, command.steps)

    def _send_train(self, command: Train) -> None:
        if command.team is not None:
            self._send_to_team(command, command.team)
        else:
            super()._send_train(command)

    def _send_to_team(self, command: Train, team: Team) -> None:
        """The turn is over for all when the slowest is done; the commands of all members come one after another."""
        first = command.ticket - team.workers.index(command.worker)
        commands = self._teams.setdefault(first, {})
        commands[command.worker] = command
        if len(commands) < len(team.members):
            return
        del self._teams[first]
        world, faults, chance = self.world, self.world.faults, self.random.random
        lasts = max(self._seconds(worker, command.all_steps) for worker in commands)
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
            spoil(poisoned, workers, commands)
            answers = train_together(
                *(team, workers, commands, fate),
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
