"""Teams in the simulator: the members of all hosts, in any order that their meetings allow, with faults at any wait."""

from __future__ import annotations

import random
from collections.abc import Collection, Generator, Mapping
from contextlib import suppress

import numpy as np

from speedo.errors import PayloadError, StoreError, TeamBrokenError
from speedo.exchange.channel import refusal
from speedo.exchange.vector import Vector
from speedo.messages import Refused, Team, Train, Trained
from speedo.worker.membership import here_of
from speedo.worker.team_turn import TeamMemory, team_rounds
from speedo.worker.turn import Worker

Answer = Trained | Refused
Memories = dict[int, dict[tuple[int, ...], TeamMemory]]  # by gathering, and who share it


def train_together(
    team: Team,
    workers: Mapping[int, Worker],
    commands: Mapping[int, Train],
    stops_after: Mapping[int, int],
    not_finite: Collection[int] = (),
    *,
    chance: random.Random | None = None,
    memories: Memories | None = None,
) -> dict[int, Answer]:
    """What each member answers. `stops_after` says after how many waits (0: before the first) one is no longer there.

    The first payload of those in `not_finite` is not. A member without a command, or that stops, answers nothing; the
    others then say that the team is broken. `chance` draws the order, and which hosts still hear of a sum of which a
    member stops. `memories` are those of the last gathering, in which its members find what they have made.
    """
    present = [worker for worker in team.workers if worker in commands and worker in workers]
    size = workers[present[0]].engine.layout.size
    memories = {} if memories is None else memories
    if team.formed not in memories:
        memories.clear()
        memories[team.formed] = {
            here: TeamMemory.over(bytearray(TeamMemory.bytes_for(len(here), size)), len(here), size)
            for here in team.spread or [here_of(team, present[0])]
        }
    own = memories[team.formed]
    turn = _Turn(team, chance or random.Random(0), own, stops_after, not_finite)
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
            turn.remove(worker)
        except (PayloadError, StoreError, TeamBrokenError) as error:
            answers[worker] = refusal(commands[worker], error)
            turn.remove(worker, str(error))
    return answers


class _Turn:
    """Where each member is: how often it has waited, and the number of a sum that it waits for now."""

    def __init__(
        self,
        team: Team,
        chance: random.Random,
        memories: Mapping[tuple[int, ...], TeamMemory],
        stops_after: Mapping[int, int],
        not_finite: Collection[int],
    ) -> None:
        self._team, self._chance, self._memories = team, chance, memories
        self._stops, self._not_finite = stops_after, not_finite
        self.running: dict[int, Generator[Vector | None, None, Trained]] = {}
        self.lost: dict[int, str] = {}  # by worker, why; empty: it died
        self._steps = dict.fromkeys(team.workers, 0)
        self._meetings = dict.fromkeys(team.workers, 0)
        self._sums: list[dict[int, Vector]] = []  # by worker that acts for its host
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
            raise TeamBrokenError(self.lost[first] or f"worker {first} has left the team")
        self._waits_for.pop(worker, None)
        to_sum = next(self.running[worker])
        self._steps[worker] += 1
        if to_sum is not None:
            return self._offer(worker, to_sum)
        self._meetings[worker] += 1
        if self._meetings[worker] == 2 and worker in self._not_finite:
            here = here_of(self._team, worker)
            self._memories[here].flags[here.index(self._team.workers.index(worker))] = 1

    def _is_ready(self, worker: int) -> bool:
        if self._stops.get(worker) == self._steps[worker]:
            return True
        if (number := self._waits_for.get(worker)) is not None:
            return worker in self._heard[number]
        neighbours = (self._team.workers[rank] for rank in here_of(self._team, worker))
        return all(self._meetings[one] >= self._meetings[worker] for one in neighbours)

    def _offer(self, worker: int, vector: Vector) -> None:
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
