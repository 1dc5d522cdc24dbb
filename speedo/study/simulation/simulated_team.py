"""Teams in the simulator: the members of all hosts, in any order that their meetings allow, with faults at any wait."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from contextlib import suppress

import numpy as np

from speedo.errors import PayloadError, StoreError, TeamBrokenError
from speedo.exchange.channel import refusal
from speedo.exchange.collective import Array
from speedo.exchange.vector import Vector
from speedo.messages import Refused, Team, Train, Trained
from speedo.worker.membership import (
    BeginSum,
    Broadcast,
    Gather,
    MeetMembers,
    SumOverHosts,
    Wait,
    here_of,
)
from speedo.worker.team_gradients import room_for_factors
from speedo.worker.team_memory import TeamMemory
from speedo.worker.team_turn import team_rounds
from speedo.worker.turn import EngineWorker

Answer = Trained | Refused
Memories = dict[int, dict[tuple[int, ...], TeamMemory]]  # by gathering, and who share it


def train_together(
    team: Team,
    workers: Mapping[int, EngineWorker],
    commands: Mapping[int, Train],
    stops_after: Mapping[int, int],
    *,
    chance: random.Random | None = None,
    memories: Memories | None = None,
) -> dict[int, Answer]:
    """What each member answers. `stops_after` says after how many waits (0: before the first) one is no longer there.

    A member without a command, or that stops, answers nothing; the others then say that the team is broken. `chance`
    draws the order, and which hosts still hear of a sum of which a member stops. `memories` are those of the last
    gathering, in which its members find what they have made.
    """
    present = [worker for worker in team.workers if worker in commands and worker in workers]
    for worker in present:
        workers[worker].follow(commands[worker])
    layout = workers[present[0]].engine.layout
    memories = {} if memories is None else memories
    if team.formed not in memories:
        memories.clear()
        factors = room_for_factors(workers[present[0]], team)
        sizes = {
            here: (len(here), len(team.members), layout, factors)
            for here in team.spread or [here_of(team, present[0])]
        }
        memories[team.formed] = {
            here: TeamMemory.over(bytearray(TeamMemory.bytes_for(*numbers)), *numbers)
            for here, numbers in sizes.items()
        }
    own = memories[team.formed]
    turn = _Turn(team, chance or random.Random(0), stops_after)
    for worker in present:
        memory = own[here_of(team, worker)]
        turn.running[worker] = team_rounds(workers[worker], commands[worker], memory)
    turn.lost = {worker: "" for worker in team.workers if worker not in turn.running}
    answers: dict[int, Answer] = {}
    while turn.running:
        worker = turn.next()
        try:
            turn.step(worker)
        except StopIteration as done:
            answers[worker] = done.value
            turn.remove(worker, done.value.broken or None)
        except (PayloadError, StoreError, TeamBrokenError) as error:
            answers[worker] = refusal(commands[worker], error)
            turn.remove(worker, str(error))
    return answers


class _Reduction:
    """Of a vector of which each value must be final once before its sum."""

    def __init__(self, vector: Vector) -> None:
        self.vector = vector
        self._ready = np.zeros(vector.size, int)

    def ready(self, start: int, stop: int) -> None:
        self._ready[start:stop] += 1

    def finish(self) -> None:
        assert (self._ready == 1).all()


class _Turn:
    """Where each member is: how often it has waited, and the number of a sum that it waits for now."""

    def __init__(self, team: Team, chance: random.Random, stops_after: Mapping[int, int]) -> None:
        self._team, self._chance, self._stops = team, chance, stops_after
        self._workers = team.workers
        self.running: dict[int, Generator[Wait, SumOverHosts | None, Trained]] = {}
        self._begun: dict[int, _Reduction] = {}
        self.lost: dict[int, str] = {}  # by worker, why; empty: it died
        self._steps = dict.fromkeys(team.workers, 0)
        self._meetings = dict.fromkeys(team.workers, 0)
        # By worker, the ranks that its present meeting waits for
        self._meets: dict[int, tuple[int, ...]] = {}
        self._sums: list[dict[int, Array]] = []  # by worker that acts for its host
        self._heard: list[set[int]] = []  # who of these has the sum, once there is one
        self._waits_for: dict[int, int] = {}  # by worker, the number of the sum

    def next(self) -> int:
        """A member that can go on, drawn; else one that nobody can help any more."""
        ready = [one for one in self.running if self._is_ready(one)]
        return self._chance.choice(ready or list(self.running))

    def remove(self, worker: int, why: str | None = None) -> None:
        """It is ready with its turn or, for a reason, has left it."""
        with suppress(RuntimeError):
            self.running.pop(worker).close()
        if why is not None:
            self.lost[worker] = why

    def step(self, worker: int) -> None:
        """It goes on to its next wait. Raises `StopIteration` behind the last, `TeamBrokenError` if nobody comes."""
        if self._stops.get(worker) == self._steps[worker]:
            return self.remove(worker, "")
        if not self._is_ready(worker):
            first = min(self.lost, key=lambda one: (bool(self.lost[one]), one))
            why = self.lost[first] or f"worker {first} has left the team"
            self.running[worker].throw(TeamBrokenError(why))
        self._waits_for.pop(worker, None)
        wait = self.running[worker].send(self._begun.pop(worker, None))
        self._steps[worker] += 1
        if isinstance(wait, BeginSum):
            self._begun[worker] = _Reduction(wait.vector)
            return None
        if isinstance(wait, _Reduction):
            wait.finish()
            return self._offer(worker, wait.vector)
        if isinstance(wait, Gather):
            here = here_of(self._team, worker)
            wait.rows[[rank for rank in range(len(wait.rows)) if rank not in here]] = 0
            return self._offer(worker, wait.rows)
        if isinstance(wait, Broadcast):
            if wait.giver not in here_of(self._team, worker):
                wait.block[:] = 0
            return self._offer(worker, wait.block)
        if isinstance(wait, np.ndarray):
            return self._offer(worker, wait)
        self._meetings[worker] += 1
        here = here_of(self._team, worker)
        self._meets[worker] = wait.ranks if isinstance(wait, MeetMembers) else here
        return None

    def _is_ready(self, worker: int) -> bool:
        if self._stops.get(worker) == self._steps[worker]:
            return True
        if (number := self._waits_for.get(worker)) is not None:
            return worker in self._heard[number]
        neighbours = (self._workers[rank] for rank in self._meets.get(worker, ()))
        return all(self._meetings[one] >= self._meetings[worker] for one in neighbours)

    def _offer(self, worker: int, vector: Array) -> None:
        """Once all hosts have brought theirs, each has the sum, in the order of the hosts; not all if one has died."""
        number = sum(worker in one for one in self._sums)
        if number == len(self._sums):
            self._sums.append({})
            self._heard.append(set())
        brought = self._sums[number]
        brought[worker], self._waits_for[worker] = vector, number
        leaders = [self._team.workers[ranks[0]] for ranks in self._team.spread]
        if not all(one in brought for one in leaders):
            return
        total = brought[leaders[0]].copy()
        for leader in leaders[1:]:
            np.add(total, brought[leader], out=total)
        whole = not any(one in self.lost for one in leaders)
        for leader in leaders:
            if whole or self._chance.random() < 0.5:
                brought[leader][:] = total
                self._heard[number].add(leader)
