"""Rounds of one step each: the members sum their gradients, and each makes the solver's update with the mean.

All members have the same weights and the same state of the solver (momentum and the like), so they have the same after
it: those of one solver with the whole batch, for every type of solver, and with clipped gradients. A member whose state
is another, because it is new or has trained alone, is given that of the others first.

Where a host has one member, what it has of its gradient goes to the other hosts while earlier layers still compute.
Between hosts, inner products whose factors are fewer bytes are exchanged so (`speedo.exchange.factors`); then each host
makes their sum.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from speedo.errors import NOT_FINITE, NotFiniteError, TeamBrokenError
from speedo.exchange.factors import FactorSpace, Product, blocks_of, choices
from speedo.exchange.vector import Vector, as_bytes, checksum
from speedo.messages import Team
from speedo.sgd_modes.rules import shares_of, sum_into
from speedo.system.failpoints import reached
from speedo.worker.membership import BeginSum, Gather, Reduction, Wait
from speedo.worker.team_memory import STATE, TeamMemory, stretch_of
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


def products_for(worker: Worker, team: Team) -> tuple[Product, ...]:
    """Those that this team exchanges as factors, if all its members have batches of one size."""
    batches = {samples for _, _, samples in team.members}
    if not (worker.factors and team.spread and len(batches) == 1):
        return ()
    found = choices(worker.engine.products(), [len(ranks) for ranks in team.spread])
    return tuple(one.product for one in found if one.pays)


def room_for_factors(worker: Worker, team: Team) -> int:
    """The float32 values for those of all members."""
    return FactorSpace.values_for(products_for(worker, team), len(team.members))


def gradient_round(seat: Seat, iteration: int) -> Generator[Wait, Reduction | None, float]:
    """One step of the team; the mean loss of this member's batch."""
    worker, team, memory = seat.worker, seat.team, seat.memory
    products = products_for(worker, team)
    if memory.factors.size != room_for_factors(worker, team):
        products = ()  # a step has become another one since the team was formed
    engine, acts = worker.engine, seat.place == 0 and bool(team.spread)
    engine.set_iteration(iteration)
    counts = [samples for _, _, samples in team.members]
    shares, after = shares_of(counts, 1.0)
    mean, out = memory.center, memory.payloads[seat.place]
    space = FactorSpace(products, len(counts), memory.factors)
    factors = {one.product.start: one for one in space.of(seat.rank)}
    rest, finite, reduction = Rest(mean, memory.payloads[0], products), True, None
    if acts and len(seat.here) == 1:
        out, reduction = mean, (yield BeginSum(rest.values))

    def done(start: int, stop: int) -> None:
        nonlocal finite
        if start in factors:
            one = factors[start]
            finite = finite and is_finite(one.left.reshape(-1)) and is_finite(one.right.reshape(-1))
            return
        finite = finite and is_finite(out[start:stop])
        if reduction is not None:
            reduction.ready(*rest.take(start, stop, float(shares[seat.rank] * after)))

    loss = engine.gradient(1, out, done, tuple(factors.values()))
    memory.flags[seat.place] = not (finite and math.isfinite(loss))
    yield None
    seat.require_finite()
    if reduction is None:
        share = stretch_of(seat.place, len(seat.here), out.size)
        payloads = [payload[share] for payload in memory.payloads]
        sum_into(mean[share], payloads, [shares[rank] for rank in seat.here], after)
    reached("team-summed")
    yield None
    if acts:
        if reduction is None:
            rest.take_all()
            yield rest.values
        else:
            yield reduction
        bad = not is_finite(rest.values)
        rest.give_back()
        if products:
            rows = memory.factors.reshape(len(counts), space.each)
            yield Gather(rows[list(seat.here)], rows)
            bad = bad or not is_finite(memory.factors)
        memory.flags[0] = bad
    if team.spread:
        yield None
        if memory.flags[0]:  # the member that it is from leaves, too, and is to blame
            raise TeamBrokenError("the gradient of a member on another host is not finite")
    for number, one in enumerate(products):
        blocks, members = blocks_of(one), len(seat.here)
        own = slice(blocks * seat.place // members, blocks * (seat.place + 1) // members)
        space.add_up(number, [1 / len(counts)] * len(counts), mean, own)
    if products:
        yield None
    engine.apply_gradient(mean)
    worker.solver_state = team.formed, worker.solver_state[1] + 1
    return loss


class Rest:
    """What of the vector `whole` is no product's: its `values`, end to end in `room`, or `whole` itself."""

    def __init__(self, whole: Vector, room: Vector, products: Sequence[Product]) -> None:
        self._whole, self._room = whole, room
        ends = [0, *(end for one in products for end in (one.start, one.stop)), whole.size]
        self._kept = list(zip(ends[::2], ends[1::2], strict=True)) if products else []
        size = sum(stop - start for start, stop in self._kept)
        self.values = room[:size] if products else whole

    def take(self, start: int, stop: int, factor: float = 1.0) -> tuple[int, int]:
        """Put these values, times `factor`, among `values`; their place there."""
        place = start
        if self._kept:
            place = sum(min(end, start) - first for first, end in self._kept if first <= start)
        into = self.values[place : place + stop - start]
        if factor != 1.0 or self._kept:
            np.multiply(self._whole[start:stop], np.float32(factor), out=into)
        return place, place + stop - start

    def take_all(self) -> None:
        """Put all there."""
        for start, stop in self._kept:
            self.take(start, stop)

    def give_back(self) -> None:
        """Put the `values` in their places in `whole`."""
        at = 0
        for start, stop in self._kept:
            self._whole[start:stop] = self.values[at : at + stop - start]
            at += stop - start


# -------------------------------------------------------------------- the state of the solvers


def say_state(seat: Seat) -> None:
    """To be done once the center is there, before all of the host meet; then `hear_states`."""
    memory = seat.memory
    if seat.place == 0:
        others = [rank for rank in range(len(seat.team.members)) if rank not in seat.here]
        memory.states[others] = 0
        memory.length[0] = 0
    memory.states[seat.rank, :STATE] = seat.worker.solver_state
    if seat.place == 0 and seat.team.spread:
        memory.states[seat.rank, STATE] = checksum(as_bytes(memory.center)) >> 1


def hear_states(seat: Seat) -> Generator[Wait, Reduction | None, bool]:
    """Learn what the members of all hosts have said; whether the center of this host is the leader's.

    Unlike processors round the solver's update in other ways, so the weights of two hosts may grow apart.
    """
    if not seat.team.spread:
        return True
    states = seat.memory.states
    if seat.place == 0:
        yield states.reshape(-1)
    yield None
    return bool(states[seat.here[0], STATE] == states[0, STATE])


def agree_on_state(seat: Seat) -> Waits:
    """Give the members that have made fewer updates the state of the one that has made most."""
    worker = seat.worker
    rows = [tuple(row) for row in seat.memory.states[:, :STATE].tolist()]
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
