"""A turn that a team of workers does together: after each round they sum, in memory on a host and between hosts.

A round: every member trains on its own records and writes its payload into the memory of its host; all there meet; each
sums one part of the vector over the members of its host, in their order; all meet again. In a team over several hosts
the first member of each then makes the sum that of all hosts, and they meet once more. A team with all workers of the
run (the master asks for `Kind.WEIGHTS`) adds the mean to the center, of which each host has a copy, by the rule of
synchronous SGD, and continues from it for the rounds of its command; a host whose copy is not the leader's at the
beginning of a turn fetches the center. Otherwise one round makes the mean payload of the team, which the master merges.
Only the first member of a host fetches the center, and only the leader publishes.

The order of summing is fixed and each value is summed by one member, so the result is bit-identical in any order of
arrival, and on all hosts. `team_rounds` is a generator that stops at each meeting and each sum over hosts: processes
carry it on by their `Membership`, the simulator steps all members together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import TypeVar

import numpy as np

from speedo.errors import TeamBrokenError
from speedo.exchange.vector import Vector
from speedo.messages import Kind, Train, Trained
from speedo.sgd_modes.rules import Contribution, add_mean, add_scaled, shares_of, sum_into
from speedo.system.failpoints import reached
from speedo.worker.membership import Gather, MeetMembers, Membership, SumOverHosts, Wait, here_of
from speedo.worker.team_gradients import (
    TeamPlace,
    agree_on_state,
    gradient_round,
    hear_states,
    room_for_factors,
    say_state,
)
from speedo.worker.team_memory import TeamMemory, is_finite
from speedo.worker.turn import EngineWorker, trained_of

Answer = TypeVar("Answer")


class TeamMember:
    """A worker's part in its team's turns."""

    def __init__(self, worker: EngineWorker, membership: Membership) -> None:
        self._worker, self._membership = worker, membership

    def close(self) -> None:
        """Meet nobody any more."""
        self._membership.close()

    def turn(self, command: Train) -> Trained:
        """As `Worker.turn`, also for a command to a team. Raises `TeamBrokenError` if another member ended it."""
        if command.team is None:
            return self._worker.turn(command)
        membership = self._membership
        try:
            self._worker.follow(command)
            began, layout = self._worker.clock(), self._worker.engine.layout
            everywhere = len(command.team.members)
            factors = room_for_factors(self._worker, command.team)
            shared = membership.enter(
                command.team, lambda here: TeamMemory.bytes_for(here, everywhere, layout, factors)
            )
            memory = TeamMemory.over(shared, len(membership.here), everywhere, layout, factors)
            trained = membership.carry(team_rounds(self._worker, command, memory))
            made = max(1, len(trained.losses))
            membership.round_s = (self._worker.clock() - began) / made
            return trained
        except TeamBrokenError as error:
            membership.part(str(error))
            raise
        except BaseException as error:
            membership.part(f"worker {self._worker.worker} has left the team: {error}")
            raise


def team_rounds(
    worker: EngineWorker, command: Train, memory: TeamMemory
) -> Generator[Wait, SumOverHosts | None, Trained]:
    """This worker's part of the turn; stops wherever it needs the others before it continues.

    Only the first member of a host waits for sums over hosts.
    """
    team = command.team
    assert team is not None
    engine, clock = worker.engine, worker.clock
    here = here_of(team, worker.worker)
    seat = TeamPlace(team, here, here.index(team.workers.index(worker.worker)), worker, memory)
    goes_on = command.payload is Kind.WEIGHTS
    # Of a turn that is no team's own step the mean of all payloads is added to the center.
    sums_gradients = goes_on and command.steps == 1 and team.rate == 1.0
    center = memory.center
    began = clock()
    memory.flags[seat.place] = 0
    if seat.is_first:
        worker.fetch_center_for_team(command, center)
    if goes_on:
        say_state(seat)
    yield "the center is there"
    if goes_on and not (yield from hear_states(seat)):
        if seat.is_first:
            worker.exchange.fetch_center(command.version, center, alone=True)
        yield "the center was fetched again"
    engine.load_weights(center)
    if sums_gradients:
        yield from agree_on_state(seat)
    fetched = clock()
    reached("worker-fetched")
    worker.place(command)
    losses = list[float]()
    meeting, broken = Stopwatch(clock), ""
    try:
        for number in range(team.rounds):
            if sums_gradients:
                round_ = gradient_round(seat, command.iteration_of(number))
            else:
                round_ = _payload_round(seat, command, number)
            losses.append((yield from meeting.of(round_)))
            worker.samples += command.steps * engine.samples_per_step
            asks = team.agree_every and (number + 1) % team.agree_every == 0
            asks = asks and number + 1 < team.rounds
            if asks and (yield from meeting.of(_agree_to_end(seat))):
                break
        if sums_gradients:
            yield "all have used the mean gradient"
    except TeamBrokenError as error:
        if not (sums_gradients and losses):
            raise
        broken = str(error)
    leads = seat.rank == 0
    if broken:
        # The leader may be gone, or its host have missed the last sum; others may still read the memory of the center.
        other_host = [ranks[0] for ranks in team.spread[1:2]]
        leads, center = seat.rank in (0, 1, *other_host), np.empty_like(center)
    if sums_gradients and (leads or seat.is_first):
        engine.read_weights(center)
    summed = clock()
    worker.made_in_team(command, center, publishes=leads)
    reached("worker-pushed")
    timings = {
        "fetch": fetched - began,
        "compute": summed - fetched - meeting.seconds,
        "team": meeting.seconds,
        "wait": meeting.seconds if team.spread else meeting.for_slower,
        "publish": clock() - summed,
    }
    samples = len(losses) * command.steps * engine.samples_per_step
    return Trained(
        worker.worker,
        worker.incarnation,
        command.ticket,
        sum(losses) / len(losses),
        samples,
        timings,
        tuple(losses) if len(losses) > 1 else (),
        has_payload=leads,
        records=trained_of(command, samples),
        broken=broken,
    )


def _agree_to_end(seat: TeamPlace) -> Generator[Wait, SumOverHosts | None, bool]:
    """Whether the turn ends here, for all members, because one is to leave."""
    told = seat.memory.states
    told[seat.rank] = seat.worker.leaves()
    yield "the members here have said who leaves"
    if seat.team.spread:
        if seat.is_first:
            yield Gather(told)
        yield "all hosts have said who leaves"
    return bool(told.any())


class Stopwatch:
    """Counts the seconds of waiting, and those of the first wait of each, which is for slower members."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self.seconds, self.for_slower = clock, 0.0, 0.0

    def of(
        self, waits: Generator[Wait, SumOverHosts | None, Answer]
    ) -> Generator[Wait, SumOverHosts | None, Answer]:
        """The same, with each wait counted."""
        begun: SumOverHosts | None = None
        before = self.seconds
        while True:
            try:
                wait = waits.send(begun)
            except StopIteration as done:
                result: Answer = done.value
                return result
            began, is_first = self._clock(), self.seconds == before
            begun = yield wait
            waited = self._clock() - began
            self.seconds += waited
            self.for_slower += waited * is_first


def _payload_round(
    seat: TeamPlace, command: Train, number: int
) -> Generator[Wait, SumOverHosts | None, float]:
    """Train, and add the mean of all payloads to the center; the mean loss."""
    team, memory, engine = seat.team, seat.memory, seat.worker.engine
    own, goes_on = memory.payloads[seat.place], command.payload is Kind.WEIGHTS
    if goes_on and number:
        engine.load_weights(memory.center)
    loss = _train(seat.worker, command, number, memory.center, own)
    memory.flags[seat.place] = not (math.isfinite(loss) and is_finite(own))
    yield "all payloads are there"
    seat.require_finite()
    if not goes_on:
        memory.center[seat.share(own.size)] = 0.0
    yield from _add_mean(seat, team.rate if goes_on else 1.0)
    return loss


def _add_mean(seat: TeamPlace, rate: float) -> Generator[Wait, SumOverHosts | None, None]:
    """Add the mean of all payloads, times `rate`, to the center: this member does so for its share of the values."""
    team, memory, here = seat.team, seat.memory, seat.here
    counts = [samples for _, _, samples in team.members]
    share = seat.share(memory.center.size)
    payloads = [payload[share] for payload in memory.payloads]
    if not team.spread:
        add_mean(memory.center[share], list(map(Contribution, payloads, counts)), rate)
        reached("team-summed")
        yield MeetMembers(seat.summing)
        return
    factors, after = shares_of(counts, rate)
    if len(here) > 1 or factors[here[0]] != 1.0:
        sum_into(payloads[0], payloads, [factors[rank] for rank in here], np.float32(1.0))
    reached("team-summed")
    yield "the sum of this host is there"
    if seat.is_first:
        yield memory.payloads[0]
    yield "the sum of all hosts is there"
    add_scaled(memory.center[share], payloads[0], float(after))
    yield "the next center is there"


def _train(worker: EngineWorker, command: Train, number: int, center: Vector, own: Vector) -> float:
    """Leave the payload of round `number` in `own`; the mean loss."""
    engine = worker.engine
    first = number * command.steps
    if command.payload is Kind.GRADIENT:
        engine.set_iteration(command.iteration_of(first))
        return engine.gradient(command.steps, own)
    worker.trains_alone()
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
