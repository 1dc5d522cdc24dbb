"""What a turn takes that a team does together: one fetch, rounds of steps, meetings and sums, one publication.

The parts are those of `speedo.worker.team_turn` and `speedo.worker.team_gradients`; each round lasts as long as its
slowest member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from speedo.study.planning.calibration import Calibration
from speedo.study.planning.shared_resources import Job, Queue, Then, chain, pause, together
from speedo.study.planning.team_round import TeamRound, ring_bytes
from speedo.study.planning.timed_machines import Machines

FINITE_SHARE: Final = 0.5  # of `Calibration.check`, which is a checksum and a norm: the norm alone


def nobody() -> None:
    """Nobody waits for this part of a step."""


Part = tuple[float, Then]  # a share of the time of a step, and who is told once it is over
WHOLE: Final[tuple[Part, ...]] = ((1.0, nobody),)


@dataclass(frozen=True, slots=True)
class TimedTeam:
    """A team that has so many members on each of its `hosts`, by machine.

    `steps` makes one round's steps of the parts that it is given, a job per member.
    """

    machines: Machines
    hosts: Mapping[int, int]
    steps: Callable[[Sequence[Part]], Sequence[Job]]

    @property
    def _costs(self) -> Calibration:
        return self.machines.calibration

    # ------------------------------------------------------------ rounds of payloads

    def rounds(self, count: int) -> Job:
        """From the fetched center to the sum of the last round.

        Of a round's sum each member makes its share over all members of its host, which is as much work as one payload
        that the master merges.
        """
        load = self._costs.load_on(far=self.machines.site.link is not None)
        found = [self._meeting()]
        for _ in range(count):
            found += [
                self._each(lambda _: load),
                together(*self.steps(WHOLE)),
                self._each(lambda _: self._finite),
                self._meeting(),
                *self._sum(),
                self._meeting(),
            ]
        return chain(*found)

    def _sum(self) -> list[Job]:
        """On one host into the center; over hosts into a payload, around the ring, and the mean into the center."""
        merge = self._costs.merge
        if len(self.hosts) == 1:
            return [self._each(lambda _: merge)]
        return [
            self._each(lambda members: merge if members > 1 else 0.0),
            self._meeting(),
            self._ring(self._costs.nbytes),
            self._meeting(),
            self._each(lambda members: merge / members),
        ]

    # ------------------------------------------------------------ rounds of gradients

    def gradient_rounds(self, count: int, moved: TeamRound | None) -> Job:
        """The same with one local step, where members sum gradients; `moved` over hosts, in each round.

        The center is loaded before the first round, and the first of each host reads it after the last.
        """
        found = [self._meeting()]
        if moved is not None:  # they say how many updates each has made
            found += [self._ring(0.0), self._meeting()]
        found.append(self._each(lambda _: self._costs.load))
        for _ in range(count):
            found += self._in_memory() if moved is None else self._over_hosts(moved)
        found += [self._meeting(), self._firsts(lambda _: self._costs.load)]
        return chain(*found)

    def _in_memory(self) -> list[Job]:
        return [
            together(*self.steps(WHOLE)),
            self._each(lambda _: self._finite),
            self._meeting(),
            self._each(lambda _: self._costs.merge),
            self._meeting(),
        ]

    def _over_hosts(self, moved: TeamRound) -> list[Job]:
        """The first of each host sums for its own what leaves; each member makes a part of the sums of factors."""
        leaving = _Leaving(self, moved)
        slower = self._costs.load_on(far=True) - self._costs.load
        found = [
            self._each(lambda _: max(0.0, slower)),
            together(*self.steps(leaving.parts)),
            self._meeting(),
            leaving.rest,
            self._firsts(lambda _: self._finite * moved.share),
        ]
        if moved.sums:
            gathered = moved.factors / self._costs.nbytes
            found += [
                self._firsts(lambda _: self._costs.merge * moved.share),  # back into the gradient
                self.hops(len(self.hosts) - 1),
                self.carry(moved.factors, call=True),
                self._firsts(lambda _: self._finite * gathered),
                self._meeting(),
                self._sums_of_factors(moved),
            ]
        found.append(self._meeting())
        if moved.update:
            found.append(together(*self.steps(((moved.update, nobody),))))
        return found

    def _sums_of_factors(self, moved: TeamRound) -> Job:
        return together(
            *(
                self.machines.compute(
                    machine, sum(one.seconds_of(place, members) for one in moved.sums)
                )
                for machine, members in self.hosts.items()
                for place in range(members)
            )
        )

    # ------------------------------------------------------------ what members and hosts do

    @property
    def _finite(self) -> float:
        return FINITE_SHARE * self._costs.check

    def _each(self, seconds: Callable[[int], float]) -> Job:
        """Work of each member, by how many its host has; over when the last has done it."""
        return together(
            *(
                self.machines.compute(machine, seconds(members))
                for machine, members in self.hosts.items()
                for _ in range(members)
            )
        )

    def _firsts(self, seconds: Callable[[int], float]) -> Job:
        """Work of the first member of each host."""
        return together(
            *(
                self.machines.compute(machine, seconds(members))
                for machine, members in self.hosts.items()
            )
        )

    def _meeting(self) -> Job:
        """From the arrival of a host's last member until all there continue."""
        return self._each(lambda members: self._costs.meeting * (members - 1))

    def _ring(self, nbytes: float) -> Job:
        """The sum of a vector over hosts (`speedo.exchange.host_exchange`)."""
        sent = ring_bytes(nbytes, len(self.hosts))
        return chain(self.hops(2 * (len(self.hosts) - 1)), self.carry(sent, call=True))

    def hops(self, count: int) -> Job:
        """The first piece passes so many links, one after another, and wakes a process up behind each."""
        latency = 0.5 * self.machines.site.round_trip + self._costs.message
        return pause(self.machines.timeline, count * latency)

    def add_up(self, share: float) -> Job:
        """This share of the vector is looked at by each, and summed by the first member of each host."""
        costs = self._costs
        return chain(
            self._each(lambda _: share * self._finite),
            self._firsts(lambda members: share * members * costs.merge),
        )

    def carry(self, nbytes: float, *, call: bool = False) -> Job:
        """Each host sends so much to the next, and works meanwhile; with what a `call` takes besides."""
        at, over = self.machines, self._costs.over_hosts
        work = self._costs.ring_work(nbytes)
        if call and over is not None:
            work += over.ring_call
        jobs = [at.compute(machine, work) for machine in self.hosts]
        rate = at.site.bytes_per_s
        if rate is not None and nbytes:
            ways = [(machine, way) for machine in self.hosts for way in ("out", "in")]
            jobs += [at.port(way).job(nbytes / rate) for way in ways]
            jobs += [at.packets(nbytes) for _ in self.hosts]
        return together(*jobs)


class _Leaving:
    """The lots of a round's gradient: each goes around the ring once all members have it, one after another."""

    def __init__(self, team: TimedTeam, moved: TeamRound) -> None:
        self._team, self._lots = team, moved.lots
        self._whole = ring_bytes(team.machines.calibration.nbytes, len(team.hosts))
        self._lacks = [sum(team.hosts.values())] * len(moved.lots)
        self._left = len(moved.lots)
        self._ring = Queue(team.machines.timeline)
        self._then: Then | None = None
        ends = [0.0, *(lot.at for lot in moved.lots)]
        shares = [later - early for early, later in pairwise(ends)]
        told = [self._has(number) for number in range(len(moved.lots))]
        self.parts: list[Part] = [*zip(shares, told, strict=True)]
        if moved.gradient > ends[-1]:
            self.parts.append((moved.gradient - ends[-1], nobody))

    def _has(self, number: int) -> Then:
        """A member has this lot."""

        def then() -> None:
            self._lacks[number] -= 1
            if not self._lacks[number]:
                nbytes = self._lots[number].nbytes
                share = nbytes / self._whole
                send = self._ring.job(self._team.carry(nbytes, call=number == 0))
                chain(self._team.add_up(share), send)(self._sent)

        return then

    def _sent(self) -> None:
        self._left -= 1
        if not self._left and self._then is not None:
            self._then()

    @property
    def rest(self) -> Job:
        """From the end of the gradient until all of the sum is there."""

        def wait(then: Then) -> None:
            if self._left:
                self._then = then
            else:
                then()

        return chain(wait, self._team.hops(2 * (len(self._team.hosts) - 1)))
