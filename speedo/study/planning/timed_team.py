"""What a turn takes that a team does together: one fetch, rounds of steps, meetings and sums, one publication.

The parts are those of `speedo.worker.team_turn`; each round lasts as long as its slowest member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from speedo.study.planning.calibration import Calibration
from speedo.study.planning.shared_resources import Job, Shared, Timeline, chain, pause, together
from speedo.study.planning.site import Site

FINITE_SHARE = 0.5  # of `Calibration.check`, which is a checksum and a norm: the norm alone


class Machines(Timeline, Protocol):
    """The machines of the members, and their links."""

    calibration: Calibration
    site: Site

    def compute_on(self, machine: int, seconds: float) -> Job: ...

    def port(self, way: tuple[int, str]) -> Shared: ...


@dataclass(frozen=True, slots=True)
class TimedTeam:
    """A team that has so many members on each of its `hosts`, by machine."""

    machines: Machines
    hosts: Mapping[int, int]

    def rounds(self, count: int, steps: Callable[[], Sequence[Job]], load: float) -> Job:
        """From the fetched center to the sum of the last round. `steps` makes one round's steps, a job per member.

        `load` is what a member takes to put the center into its net. Of a round's sum each member makes its share over
        all members of its host, which is as much work as one payload that the master merges.
        """
        check = FINITE_SHARE * self.machines.calibration.check
        found = [self._meeting()]
        for _ in range(count):
            found += [
                self._each(lambda _: load),
                together(*steps()),
                self._each(lambda _: check),
                self._meeting(),
                *self._sum(),
                self._meeting(),
            ]
        return chain(*found)

    def _each(self, seconds: Callable[[int], float]) -> Job:
        """Work of each member, by how many its host has; over when the last has done it."""
        return together(
            *(
                self.machines.compute_on(machine, seconds(members))
                for machine, members in self.hosts.items()
                for _ in range(members)
            )
        )

    def _meeting(self) -> Job:
        """From the arrival of a host's last member until all there continue."""
        meeting = self.machines.calibration.meeting
        return self._each(lambda members: meeting * (members - 1))

    def _sum(self) -> list[Job]:
        """On one host into the center; over hosts into a payload, around the ring, and the mean into the center."""
        merge = self.machines.calibration.merge
        if len(self.hosts) == 1:
            return [self._each(lambda _: merge)]
        return [
            self._each(lambda members: merge if members > 1 else 0.0),
            self._meeting(),
            self._ring(),
            self._meeting(),
            self._each(lambda members: merge / members),
        ]

    def _ring(self) -> Job:
        """The sum over hosts (`speedo.exchange.host_exchange`): a link carries 2 (n - 1) / n of the model each way.

        The hosts send, receive and add while the bytes travel. The first piece passes 2 (n - 1) links, one after
        another, and wakes a process up behind each.
        """
        at, costs, site = self.machines, self.machines.calibration, self.machines.site
        hops = 2 * (len(self.hosts) - 1)
        share = hops / len(self.hosts)
        nbytes, rate = share * costs.nbytes, site.bytes_per_s
        work = share * (costs.far.write.client + costs.far.read.client + costs.merge / 2)
        jobs = [at.compute_on(machine, work) for machine in self.hosts]
        if rate is not None:
            ways = [(machine, way) for machine in self.hosts for way in ("out", "in")]
            jobs += [at.port(way).job(nbytes / rate) for way in ways]
            jobs += [at.compute_on(0, site.packet_work * nbytes) for _ in self.hosts]
        latency = 0.5 * site.round_trip + costs.message
        return chain(pause(at, hops * latency), together(*jobs))
