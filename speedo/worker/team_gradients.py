"""Rounds of one step each: the members sum their gradients, and each makes the solver's update with the mean.

All members have the same weights and the same state of the solver (momentum and the like), so they have the same after
it: those of one solver with the whole batch, for every type of solver, and with clipped gradients. A member whose state
is another, because it is new or has trained alone, is given that of the others first.

What all members of a host have of their gradients goes to the other hosts while earlier layers still compute.
Between hosts, inner products whose factors are fewer bytes are exchanged so (`speedo.exchange.factors`); then each host
makes their sum.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from speedo.errors import NOT_FINITE, NotFiniteError, TeamBrokenError
from speedo.exchange.factors import FactorSpace, Product, blocks_of, choices
from speedo.exchange.vector import Layout, Vector, as_bytes, checksum
from speedo.messages import Team
from speedo.sgd_modes.rules import shares_of, sum_into
from speedo.system.failpoints import reached
from speedo.worker.membership import BeginSum, Gather, MeetMembers, Seat, SumOverHosts, Wait
from speedo.worker.team_memory import STATE, TeamMemory, is_finite, stretch_of
from speedo.worker.team_state import Waits, hand_over
from speedo.worker.turn import EngineWorker


@dataclass(frozen=True)
class TeamPlace(Seat):
    """A worker's place in its team, and the memory of its host."""

    worker: EngineWorker
    memory: TeamMemory

    @property
    def summing(self) -> tuple[int, ...]:
        """The ranks of those here that sum: not who computes so slowly that it has less than half of an equal share."""
        samples = {rank: self.team.members[rank][2] for rank in self.here}
        enough = sum(samples.values()) / len(samples) / 2
        return tuple(rank for rank, own in samples.items() if own >= enough)

    def share(self, size: int) -> slice:
        """The values that it sums."""
        summing = self.summing
        return stretch_of(self.place, [rank in summing for rank in self.here], size)

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


# -------------------------------------------------------------------- a round


def products_for(worker: EngineWorker, team: Team) -> tuple[Product, ...]:
    """Those that this team exchanges as factors, if all its members have batches of one size."""
    batches = {samples for _, _, samples in team.members}
    if not (worker.factors and team.spread and len(batches) == 1):
        return ()
    found = choices(worker.engine.products(), [len(ranks) for ranks in team.spread])
    return tuple(one.product for one in found if one.pays)


def room_for_factors(worker: EngineWorker, team: Team) -> int:
    """The float32 values for those of all members."""
    return FactorSpace.values_for(products_for(worker, team), len(team.members))


def gradient_round(seat: TeamPlace, iteration: int) -> Generator[Wait, SumOverHosts | None, float]:
    """One step of the team; the mean loss of this member's batch."""
    worker, team, memory = seat.worker, seat.team, seat.memory
    products = products_for(worker, team)
    if memory.factors.size != room_for_factors(worker, team):
        products = ()  # a step has become another one since the team was formed
    engine, number = worker.engine, worker.solver_state[1] + 1
    engine.set_iteration(iteration)
    counts = [samples for _, _, samples in team.members]
    shares, after = shares_of(counts, 1.0)
    mean, own = memory.center, memory.payloads[seat.place]
    space = FactorSpace(products, len(counts), memory.factors)
    factors = {one.product.start: one for one in space.of(seat.rank)}
    shares_here, leaving, finite = [shares[rank] for rank in seat.here], None, True
    starts = [place.start for _, place in engine.layout.slices()]
    if seat.is_first and team.spread:
        leaving = OutgoingSum(memory, engine.layout, products, number, shares_here, after)
        reduction = yield BeginSum(leaving.values)
        assert reduction is not None
        leaving.reduction = reduction

    def done(start: int, stop: int) -> None:
        nonlocal finite
        parts: list[Vector] = [own[start:stop]]
        if start in factors:
            parts = [factors[start].left.reshape(-1), factors[start].right.reshape(-1)]
        finite = finite and all(map(is_finite, parts))
        if not finite:
            return  # other hosts are to hear who it is, and not to find it in their sum
        if team.spread:
            blobs = slice(bisect_left(starts, start), bisect_left(starts, stop))
            memory.say_ready(seat.place, blobs, number)
        if leaving is not None:
            leaving.let_go()

    loss = engine.gradient(1, own, done, tuple(factors.values()))
    memory.flags[seat.place] = not (finite and math.isfinite(loss))
    yield "all gradients are there"
    seat.require_finite()
    if not team.spread:
        share = seat.share(own.size)
        payloads = [payload[share] for payload in memory.payloads]
        sum_into(mean[share], payloads, shares_here, after)
    reached("team-summed")
    if leaving is not None:
        leaving.let_go()
        yield leaving.reduction
        bad = not is_finite(leaving.values)
        leaving.give_back()
        if products:
            rows = memory.factors.reshape(len(counts), space.each)
            yield Gather(rows)
            bad = bad or not is_finite(memory.factors)
        memory.flags[0] = bad
    # Between hosts the first member of each brings the sum. Nobody waits for others here: one that has died meanwhile
    # is in the sum, and the round is whole on all hosts.
    yield MeetMembers(seat.here[:1] if team.spread else seat.summing)
    if team.spread and memory.flags[0]:  # the member that it is from leaves, too, and is to blame
        raise TeamBrokenError("the gradient of a member on another host is not finite")
    for at, one in enumerate(products):
        blocks, members = blocks_of(one), len(seat.here)
        some = slice(blocks * seat.place // members, blocks * (seat.place + 1) // members)
        space.add_up(at, [1 / len(counts)] * len(counts), mean, some)
    if products:
        yield "the sums of factors are there"
    engine.apply_gradient(mean)
    worker.solver_state = team.formed, number
    return loss


class OutgoingSum:
    """The sum of a host's gradients in round `number`, which goes to the other hosts blob by blob.

    `values` are those of no product, end to end, in the memory of the mean if there is no product.
    """

    reduction: SumOverHosts

    def __init__(
        self,
        memory: TeamMemory,
        layout: Layout,
        products: Sequence[Product],
        number: int,
        shares: Sequence[np.float32],
        after: np.float32,
    ) -> None:
        self._memory, self._number, self._shares, self._after = memory, number, shares, after
        starts = {one.start for one in products}
        places = [place for _, place in layout.slices()]
        self._left = {at: place for at, place in enumerate(places) if place.start not in starts}
        self._to: dict[int, int] = {}  # by blob, the place of its first value in `values`
        size = 0
        for at, place in self._left.items():
            self._to[at] = size
            size += place.stop - place.start
        self._kept = dict(self._left) if products else {}
        self.values = np.empty(size, np.float32) if products else memory.center

    def let_go(self) -> None:
        """Sum the blobs that all members of the host have ready, the last first; the sums leave."""
        ready = (self._memory.ready == self._number).all(axis=0)
        for at in [one for one in reversed(self._left) if ready[one]]:
            place, first = self._left.pop(at), self._to[at]
            stop = first + place.stop - place.start
            payloads = [payload[place] for payload in self._memory.payloads]
            sum_into(self.values[first:stop], payloads, self._shares, self._after)
            self.reduction.ready(first, stop)

    def give_back(self) -> None:
        """Put the `values` in their places in the mean."""
        for at, place in self._kept.items():
            first = self._to[at]
            self._memory.center[place] = self.values[first : first + place.stop - place.start]


# -------------------------------------------------------------------- the state of the solvers


def say_state(seat: TeamPlace) -> None:
    """To be done once the center is there, before all of the host meet; then `hear_states`."""
    memory = seat.memory
    memory.states[seat.rank, :STATE] = seat.worker.solver_state
    if seat.is_first and seat.team.spread:
        memory.states[seat.rank, STATE] = checksum(as_bytes(memory.center)) >> 1


def hear_states(seat: TeamPlace) -> Generator[Wait, SumOverHosts | None, bool]:
    """Learn what the members of all hosts have said; whether the center of this host is the leader's.

    Unlike processors round in other ways, and memory may fail, so the weights of two hosts may grow apart.
    """
    if not seat.team.spread:
        return True
    states = seat.memory.states
    if seat.is_first:
        yield Gather(states)
    yield "all hosts have said their states"
    return bool(states[seat.here[0], STATE] == states[0, STATE])


def agree_on_state(seat: TeamPlace) -> Waits:
    """Give the members that have made fewer updates the state of the one that has made most.

    It goes through the memory of the center, which all have loaded.
    """
    worker, memory = seat.worker, seat.memory
    rows = [tuple(row) for row in seat.memory.states[:, :STATE].tolist()]
    giver = max(range(len(rows)), key=lambda rank: (rows[rank][1], -rank))
    if any(row != rows[giver] for row in rows):
        has_it = rows[seat.rank] == rows[giver]
        state = yield from hand_over(
            *(seat, giver, memory.length, memory.center.view(np.uint8)),
            worker.engine.history if has_it else None,
        )
        if not has_it:
            worker.engine.load_history(state)
    worker.solver_state = seat.team.formed, rows[giver][1]
