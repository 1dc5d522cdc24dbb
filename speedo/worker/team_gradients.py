"""Rounds of one step each: the members sum their gradients, and each makes the solver's update with the mean.

All members have the same weights and the same state of the solver (momentum and the like), so they have the same after
it: those of one solver with the whole batch, for every type of solver, and with clipped gradients. A member whose state
is another, because it is new or has trained alone, is given that of the others first.

Where a host has one member, what it has of its gradient goes to the other hosts while earlier layers still compute.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from speedo.errors import NOT_FINITE, NotFiniteError, TeamBrokenError
from speedo.exchange.vector import Vector
from speedo.messages import Team
from speedo.sgd_modes.rules import shares_of, sum_into
from speedo.system.failpoints import reached
from speedo.worker.membership import BeginSum, Reduction, Wait
from speedo.worker.team_memory import TeamMemory, stretch_of
from speedo.worker.turn import Worker

Waits = Generator[Wait, Reduction | None, None]


@dataclass(frozen=True)
class Seat:
    """A worker's place in its team: `here` are those of the members of its host, `place` is its own among them."""

    worker: Worker
    team: Team
    memory: TeamMemory
    here: tuple[int, ...]
    place: int

    @property
    def rank(self) -> int:
        return self.here[self.place]

    def require_finite(self) -> None:
        """Raise `NotFiniteError` in the member whose payload is not finite, `TeamBrokenError` in others of its host.

        Other hosts hear why it leaves.
        """
        flags = self.memory.flags
        if flags[self.place]:
            raise NotFiniteError(NOT_FINITE)
        for rank, flag in zip(self.here, flags, strict=True):
            if flag:
                worker = self.team.workers[rank]
                raise TeamBrokenError(f"the result of worker {worker} is not finite")


def is_finite(vector: Vector) -> bool:
    """Whether its values are, and the sum of their squares."""
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(float(np.dot(vector, vector)))


# -------------------------------------------------------------------- a round


def gradient_round(seat: Seat, iteration: int) -> Generator[Wait, Reduction | None, float]:
    """One step of the team; the mean loss of this member's batch."""
    worker, team, memory = seat.worker, seat.team, seat.memory
    worker.engine.set_iteration(iteration)
    factors, after = shares_of([samples for _, _, samples in team.members], 1.0)
    if team.spread and len(seat.here) == 1:
        loss = yield from _sum_while_computing(seat, float(factors[seat.rank] * after))
    else:
        own = memory.payloads[seat.place]
        loss = worker.engine.gradient(1, own)
        memory.flags[seat.place] = not (math.isfinite(loss) and is_finite(own))
        yield None
        seat.require_finite()
        share = stretch_of(seat.place, len(seat.here), own.size)
        payloads = [payload[share] for payload in memory.payloads]
        sum_into(memory.center[share], payloads, [factors[rank] for rank in seat.here], after)
        reached("team-summed")
        yield None
        if team.spread:
            if seat.place == 0:
                yield memory.center
                memory.flags[0] = 2 * (not is_finite(memory.center))
            yield None
            _require_finite_sum(int(memory.flags[0]) != 0)
    worker.engine.apply_gradient(memory.center)
    worker.solver_state = team.formed, worker.solver_state[1] + 1
    return loss


def _sum_while_computing(seat: Seat, factor: float) -> Generator[Wait, Reduction | None, float]:
    """Leave the mean of all hosts in `center`."""
    mean, finite = seat.memory.center, True
    reduction = yield BeginSum(mean)
    assert reduction is not None

    def done(start: int, stop: int) -> None:
        nonlocal finite
        part = mean[start:stop]
        finite = finite and is_finite(part)
        if factor != 1.0:
            part *= np.float32(factor)
        reduction.ready(start, stop)

    loss = seat.worker.engine.gradient(1, mean, done)
    if not (finite and math.isfinite(loss)):
        raise NotFiniteError(NOT_FINITE)
    reached("team-summed")
    yield reduction
    _require_finite_sum(not is_finite(mean))
    return loss


def _require_finite_sum(bad: bool) -> None:
    """The member that it is from leaves the team as well, and is to blame."""
    if bad:
        raise TeamBrokenError("the gradient of a member on another host is not finite")


# -------------------------------------------------------------------- the state of the solvers


def say_state(seat: Seat) -> None:
    """To be done before all of the host meet, then `agree_on_state`."""
    memory = seat.memory
    if seat.place == 0:
        others = [rank for rank in range(len(seat.team.members)) if rank not in seat.here]
        memory.states[others] = 0
        memory.length[0] = 0
    memory.states[seat.rank] = seat.worker.solver_state


def agree_on_state(seat: Seat) -> Waits:
    """Give the members that have made fewer updates the state of the one that has made most."""
    worker, states = seat.worker, seat.memory.states
    if seat.team.spread:
        if seat.place == 0:
            yield states.reshape(-1)
        yield None
    rows = [tuple(row) for row in states.tolist()]
    giver = max(range(len(rows)), key=lambda rank: (rows[rank][1], -rank))
    if any(row != rows[giver] for row in rows):
        state = yield from _hand_over(seat, giver)
        if rows[seat.rank] != rows[giver]:
            worker.engine.load_history(state)
    worker.solver_state = seat.team.formed, rows[giver][1]


def _hand_over(seat: Seat, giver: int) -> Generator[Wait, Reduction | None, bytes]:
    """The state of the solver of member `giver`; it goes through the memory of the center, which is not needed now."""
    memory, gives = seat.memory, seat.rank == giver
    room, state, found = memory.center.view(np.uint8), b"", bytearray()
    if gives:
        state = seat.worker.engine.history()
        memory.length[0] = len(state)
    yield None  # all have loaded the center
    yield from _spread(seat, memory.length)
    length = int(memory.length[0])
    for start in range(0, length, room.size):
        part = room[: min(room.size, length - start)]
        if gives:
            part[:] = np.frombuffer(state, np.uint8, part.size, start)
        elif seat.place == 0 and giver not in seat.here:
            part[:] = 0
        yield None
        yield from _spread(seat, part)
        found += part.tobytes()
        yield None
    return bytes(found)


def _spread(seat: Seat, numbers: np.ndarray) -> Waits:
    """What one host has there, and others have 0, comes to all."""
    if seat.team.spread:
        if seat.place == 0:
            yield numbers
        yield None
