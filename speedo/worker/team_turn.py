"""A turn that a team of workers does together: after each round they sum, in memory on a host and between hosts.

A round: every member trains on its own records and writes its payload into the memory of its host; all there meet; each
sums one part of the vector over the members of its host, in their order; all meet again. In a team over several hosts
the first member of each then makes the sum that of all hosts, and they meet once more. A team with all workers of the
run (the master asks for `Kind.WEIGHTS`) adds the mean to the center, of which each host has a copy, by the rule of
synchronous SGD, and continues from it for the rounds of its command. Otherwise one round makes the mean payload of the
team, which the master merges. Only the first member of a host fetches the center, and only the leader publishes.

The order of summing is fixed and each value is summed by one member, so the result is bit-identical in any order of
arrival, and on all hosts. `team_rounds` is a generator that stops at each meeting and each sum over hosts: processes
carry it on by their `Membership`, the simulator steps all members together.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from speedo.errors import NOT_FINITE, NotFiniteError, TeamBrokenError
from speedo.exchange.vector import Vector
from speedo.messages import Kind, Team, Train, Trained
from speedo.sgd_modes.rules import Contribution, add_mean, add_scaled, shares_of, sum_into
from speedo.system.failpoints import reached
from speedo.worker.membership import Membership, here_of
from speedo.worker.turn import Worker

ALIGNED: Final = 16  # float32 values of a cache line: no two members write to the same
FLAG_BYTES: Final = 64  # a cache line for each member


@dataclass(frozen=True)
class TeamMemory:
    """What the members share: `center`, one payload for each, and a flag for each; all of them views.

    A flag is 0 as long as the member's payload is finite.
    """

    center: Vector
    payloads: tuple[Vector, ...]
    flags: np.ndarray

    @classmethod
    def over(cls, memory: memoryview | bytearray, members: int, size: int) -> TeamMemory:
        """Vectors of `size` float32 in memory of `bytes_for` bytes."""
        values = np.frombuffer(memory, np.float32, count=(members + 1) * _padded(size))
        vectors = [
            values[at * _padded(size) : at * _padded(size) + size] for at in range(members + 1)
        ]
        flags = np.frombuffer(memory, np.uint8, offset=values.nbytes, count=members * FLAG_BYTES)
        return cls(vectors[0], tuple(vectors[1:]), flags[::FLAG_BYTES])

    @staticmethod
    def bytes_for(members: int, size: int) -> int:
        return (members + 1) * _padded(size) * 4 + members * FLAG_BYTES


def _padded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


class TeamMember:
    """A worker's part in its team's turns."""

    def __init__(self, worker: Worker, membership: Membership) -> None:
        self._worker, self._membership = worker, membership

    def close(self) -> None:
        """Meet nobody any more."""
        self._membership.close()

    def turn(self, command: Train) -> Trained:
        """As `Worker.turn`, also for a command to a team. Raises `TeamBrokenError` if another member ended it."""
        if command.team is None:
            return self._worker.turn(command)
        membership, size = self._membership, self._worker.engine.layout.size
        began = self._worker.clock()
        try:
            shared = membership.enter(
                command.team, lambda members: TeamMemory.bytes_for(members, size)
            )
            memory = TeamMemory.over(shared, len(membership.here), size)
            rounds = team_rounds(self._worker, command, memory)
            while True:
                try:
                    to_sum = next(rounds)
                except StopIteration as done:
                    trained: Trained = done.value
                    membership.round_s = (self._worker.clock() - began) / command.team.rounds
                    return trained
                if to_sum is None:
                    membership.meet()
                else:
                    membership.sum_over_hosts(to_sum)
        except TeamBrokenError as error:
            membership.part(str(error))
            raise
        except BaseException as error:
            membership.part(f"worker {self._worker.worker} has left the team: {error}")
            raise


def stretch_of(rank: int, members: int, size: int) -> slice:
    """The values that member `rank` sums: equal shares, whole cache lines."""
    lines = _padded(size) // ALIGNED
    first, last = lines * rank // members, lines * (rank + 1) // members
    return slice(first * ALIGNED, min(last * ALIGNED, size))


def team_rounds(
    worker: Worker, command: Train, memory: TeamMemory
) -> Generator[Vector | None, None, Trained]:
    """This worker's part of the turn; stops wherever all members of its host must be there before it continues.

    Of a vector that it yields, in the first member of a host, it needs the sum over the hosts, in its place.
    """
    team = command.team
    assert team is not None
    engine, clock = worker.engine, worker.clock
    here = here_of(team, worker.worker)
    place = here.index(team.workers.index(worker.worker))  # in the memory
    goes_on = command.payload is Kind.WEIGHTS
    own, center = memory.payloads[place], memory.center
    began = clock()
    memory.flags[place] = 0
    if place == 0:
        worker.fetch_center_for_team(command, center)
    yield None
    engine.load_weights(center)
    fetched = clock()
    reached("worker-fetched")
    computing, losses = 0.0, []
    for number in range(team.rounds):
        start = clock()
        loss = _one_round(worker, command, number, center, own)
        losses.append(loss)
        worker.samples += command.steps * engine.samples_per_step
        if not (math.isfinite(loss) and _is_finite(own)):
            memory.flags[place] = 1
        computing += clock() - start
        yield None
        _require_finite([team.workers[rank] for rank in here], place, memory.flags)
        if not goes_on:
            center[stretch_of(place, len(here), center.size)] = 0.0
        yield from _add_mean(team, here, place, memory, team.rate if goes_on else 1.0)
        if goes_on and number + 1 < team.rounds:
            engine.load_weights(center)
    summed = clock()
    worker.made_in_team(command, center)
    reached("worker-pushed")
    timings = {
        "fetch": fetched - began,
        "compute": computing,
        "team": summed - fetched - computing,
        "publish": clock() - summed,
    }
    return Trained(
        worker.worker,
        worker.incarnation,
        command.ticket,
        sum(losses) / len(losses),
        team.rounds * command.steps * engine.samples_per_step,
        timings,
        tuple(losses) if team.rounds > 1 else (),
        has_payload=worker.worker == team.leader,
    )


def _add_mean(
    team: Team, here: Sequence[int], place: int, memory: TeamMemory, rate: float
) -> Generator[Vector | None, None, None]:
    """Add the mean of all payloads, times `rate`, to the center: this member does so for its share of the values."""
    counts = [samples for _, _, samples in team.members]
    share = stretch_of(place, len(here), memory.center.size)
    payloads = [payload[share] for payload in memory.payloads]
    if not team.spread:
        add_mean(memory.center[share], list(map(Contribution, payloads, counts)), rate)
        reached("team-summed")
        yield None
        return
    factors, after = shares_of(counts, rate)
    if len(here) > 1 or factors[here[0]] != 1.0:
        sum_into(payloads[0], payloads, [factors[rank] for rank in here], np.float32(1.0))
    reached("team-summed")
    yield None
    if place == 0:
        yield memory.payloads[0]
    yield None
    add_scaled(memory.center[share], payloads[0], float(after))
    yield None


def _one_round(worker: Worker, command: Train, number: int, center: Vector, own: Vector) -> float:
    """Train one round; leaves its payload in `own`. The mean loss."""
    engine = worker.engine
    first = number * command.steps
    if command.payload is Kind.GRADIENT:
        engine.set_iteration(command.iteration_of(first))
        return engine.gradient(command.steps, own)
    if command.steps == 1:
        engine.set_iteration(command.iteration_of(first))
        return engine.step(1, own)
    total = 0.0
    for step in range(command.steps):
        engine.set_iteration(command.iteration_of(first + step))
        total += engine.step(1)
    engine.read_weights(own)
    own -= center
    return total / command.steps


def _is_finite(vector: Vector) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(float(np.dot(vector, vector)))


def _require_finite(workers: Sequence[int], place: int, flags: np.ndarray) -> None:
    """Raise `NotFiniteError` in the member whose payload is not finite, `TeamBrokenError` in the others.

    In this host: other hosts hear why it leaves.
    """
    if flags[place]:
        raise NotFiniteError(NOT_FINITE)
    for worker, flag in zip(workers, flags, strict=True):
        if flag:
            raise TeamBrokenError(f"the result of worker {worker} is not finite")
