"""A turn that the workers of one host do together: after each round they sum in memory that they share.

A round: every member trains on its own records and writes its payload into the memory; all meet; each sums one part of
the vector over all members, in their order; all meet again. A team with all workers of the run (the master asks for
`Kind.WEIGHTS`) adds the mean to the center there, by the rule of synchronous SGD, and continues from it for the rounds
of its command. Otherwise one round makes the mean payload of the host, which the master merges. Only the leader fetches
the center and publishes.

The order of summing is fixed and each value is summed by one member, so the result is bit-identical in any order of
arrival. `team_rounds` is a generator that stops at each meeting: processes carry it on over sockets
(`speedo.exchange.team_meeting`), the simulator steps all members together.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from speedo.errors import NOT_FINITE, NotFiniteError, TeamBrokenError
from speedo.exchange.vector import Vector
from speedo.messages import Kind, Team, Train, Trained
from speedo.sgd_modes.rules import AverageDeltas, Contribution
from speedo.system.failpoints import reached
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


class Gathering(Protocol):
    """How a worker meets the other members of a team."""

    def gather(self, team: Team, size: int) -> memoryview:
        """Connect with all members; `size` bytes of memory that all share. Raises `TeamBrokenError`."""
        ...

    def meet(self, patience_s: float) -> None:
        """Return once all members are here. Raises `TeamBrokenError` if one is gone or does not come in time."""
        ...

    def part(self) -> None:
        """Let the others know at once that this member does not continue."""
        ...

    def close(self) -> None:
        """Part for good."""
        ...


class TeamMember:
    """A worker's part in its team's turns, over its way to meet."""

    def __init__(self, worker: Worker, gathering: Gathering) -> None:
        self._worker, self._gathering = worker, gathering

    def close(self) -> None:
        """Meet nobody any more."""
        self._gathering.close()

    def turn(self, command: Train) -> Trained:
        """As `Worker.turn`, also for a command to a team. Raises `TeamBrokenError` if another member ended it."""
        if command.team is None:
            return self._worker.turn(command)
        gathering = self._gathering
        try:
            members, size = len(command.team.members), self._worker.engine.layout.size
            shared = gathering.gather(command.team, TeamMemory.bytes_for(members, size))
            memory = TeamMemory.over(shared, members, size)
            rounds = team_rounds(self._worker, command, memory)
            while True:
                try:
                    next(rounds)
                except StopIteration as done:
                    trained: Trained = done.value
                    return trained
                gathering.meet(command.team.patience_s)
        except BaseException:
            gathering.part()
            raise


def stretch_of(rank: int, members: int, size: int) -> slice:
    """The values that member `rank` sums: equal shares, whole cache lines."""
    lines = _padded(size) // ALIGNED
    first, last = lines * rank // members, lines * (rank + 1) // members
    return slice(first * ALIGNED, min(last * ALIGNED, size))


def team_rounds(
    worker: Worker, command: Train, memory: TeamMemory
) -> Generator[None, None, Trained]:
    """This worker's part of the turn; stops wherever all members must be there before it continues."""
    team = command.team
    assert team is not None
    engine, clock = worker.engine, worker.clock
    rank = team.workers.index(worker.worker)
    goes_on = command.payload is Kind.WEIGHTS
    own, share = memory.payloads[rank], stretch_of(rank, len(team.members), engine.layout.size)
    contributions = [
        Contribution(payload[share], samples)
        for payload, (_, _, samples) in zip(memory.payloads, team.members, strict=True)
    ]
    out = memory.center[share]
    began = clock()
    memory.flags[rank] = 0
    if rank == 0:
        worker.fetch_center_for_team(command, memory.center)
    yield
    engine.load_weights(memory.center)
    fetched = clock()
    reached("worker-fetched")
    computing, losses = 0.0, []
    for number in range(team.rounds):
        start = clock()
        loss = _one_round(worker, command, number, memory.center, own)
        losses.append(loss)
        worker.samples += command.steps * engine.samples_per_step
        if not (math.isfinite(loss) and _is_finite(own)):
            memory.flags[rank] = 1
        computing += clock() - start
        yield
        _require_finite(team, rank, memory.flags)
        if not goes_on:
            out.fill(0.0)
        rate, iteration = (
            team.rate if goes_on else 1.0,
            command.iteration_of(number * command.steps),
        )
        AverageDeltas().merge(out, contributions, rate, iteration)
        reached("team-summed")
        yield
        if goes_on and number + 1 < team.rounds:
            engine.load_weights(memory.center)
    summed = clock()
    if rank == 0:
        worker.publish_for_team(command, memory.center)
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
        has_payload=rank == 0,
    )


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


def _require_finite(team: Team, rank: int, flags: np.ndarray) -> None:
    """Raise `NotFiniteError` in the member whose payload is not finite, `TeamBrokenError` in the others."""
    bad = list(_members_at_fault(team, flags))
    if not bad:
        return
    if flags[rank]:
        raise NotFiniteError(NOT_FINITE)
    raise TeamBrokenError(f"the result of worker {bad[0]} is not finite")


def _members_at_fault(team: Team, flags: np.ndarray) -> Iterator[int]:
    return (worker for worker, flag in zip(team.workers, flags, strict=True) if flag)
