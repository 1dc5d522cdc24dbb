"""A worker's place in its team, and its ways to the other members: memory on its host, an exchange between hosts.

The members of a host meet and share memory (`speedo.exchange.team_meeting`). The first of them also has a connection
to the first members of the other hosts (`speedo.exchange.host_exchange`), and sums over the hosts for all of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

import numpy as np

from speedo.errors import TeamBrokenError
from speedo.exchange.collective import Array
from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.team_meeting import TeamMeeting
from speedo.exchange.vector import Vector
from speedo.messages import Team

Answer = TypeVar("Answer")
# For another member, with three rounds; one that waits says so each half second.
LEAST_PATIENCE_S: Final = 3.0


class SumOverHosts(Protocol):
    """A sum over hosts under way, of a vector whose values become final one after another."""

    def ready(self, start: int, stop: int) -> None:
        """These values are final here."""
        ...

    def finish(self) -> None:
        """Return once the vector is the sum. Raises `TeamBrokenError`."""
        ...


@dataclass(frozen=True, slots=True)
class BeginSum:
    """A wish for a `SumOverHosts` of this vector."""

    vector: Vector


@dataclass(frozen=True, slots=True)
class Gather:
    """A wish for the `rows` of all members, of which those of this host are there."""

    rows: Array


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A wish for what the host of the member with rank `giver` has in the `block`."""

    block: Array
    giver: int


@dataclass(frozen=True, slots=True)
class MeetMembers:
    """A wish to meet the members of this host that have these ranks; the others do not wait for one that has none."""

    ranks: tuple[int, ...]


# What a member needs of the others: to meet those of its host until this holds for all, or sums over hosts.
Wait = str | Array | BeginSum | Gather | Broadcast | SumOverHosts | MeetMembers


@dataclass(frozen=True)
class Seat:
    """A place in a team: `here` are the ranks of the members of its host, `place` is its own among them."""

    team: Team
    here: tuple[int, ...]
    place: int

    @property
    def rank(self) -> int:
        return self.here[self.place]

    @property
    def is_first(self) -> bool:
        """Whether it acts for its host: it fetches the center, and exchanges with other hosts."""
        return self.place == 0


class Membership:
    """The part of worker `worker`, for one thread.

    In its present team it has the place `rank`; those of the members of its host are `here`. `exchange` is that of the
    first of them, if there are other hosts; `reach` makes it. A round took `round_s` in the last turn of this
    gathering.
    """

    def __init__(
        self, worker: int, meeting: TeamMeeting, reach: Callable[[Team], HostExchange]
    ) -> None:
        self._worker, self._meeting, self._reach = worker, meeting, reach
        self.rank = 0
        self.here: tuple[int, ...] = (0,)
        self.round_s = math.inf
        self.exchange: HostExchange | None = None
        self._formed, self._patience_s = 0, 0.0
        self._workers: tuple[int, ...] = ()
        self._spread: tuple[tuple[int, ...], ...] = ()

    def enter(self, team: Team, size: Callable[[int], int]) -> memoryview:
        """Be a member of this team: the memory of `size(members of this host)` bytes that these share.

        Connections of the same gathering are used again. Raises `TeamBrokenError`.
        """
        self._workers = team.workers
        self.rank, self.here = team.workers.index(self._worker), here_of(team, self._worker)
        self._spread = team.spread
        if team.formed != self._formed:
            self.round_s = math.inf
            self._leave_hosts("")
            if team.spread and self.is_first:
                self.exchange = self._reach(team)
            self._formed = team.formed
        self._patience_s = min(team.patience_s, LEAST_PATIENCE_S + 3.0 * self.round_s)
        if self.exchange is not None:
            self.exchange.wait_for(self._patience_s)
        members = tuple(team.members[one] for one in self.here)
        return self._meeting.gather(replace(team, members=members, spread=()), size(len(self.here)))

    @property
    def is_first(self) -> bool:
        """Whether it acts for its host: it fetches the center, and exchanges with other hosts."""
        return self.rank == self.here[0]

    def meet(self, until: str) -> None:
        """Return once all members of this host are here, `until` this holds. Raises `TeamBrokenError`."""
        self._meeting.meet(self._patience_s, until=until)

    def sum_over_hosts(self, vector: Array) -> None:
        """Make it the sum of those of all hosts, the same bits in each. Raises `TeamBrokenError`."""
        if self.exchange is not None:
            self.exchange.all_reduce("sum", vector, np.add)

    def gather(self, rows: Array) -> None:
        """Have the rows of all members: the first of each host brings those of its host. Raises `TeamBrokenError`."""
        if self.exchange is not None:
            self.exchange.all_gather("rows", rows[list(self.here)], self._spread, rows)

    def carry(self, waits: Generator[Wait, SumOverHosts | None, Answer]) -> Answer:
        """Do all that it needs one after another; its answer. A `TeamBrokenError` is raised where it waits."""
        begun: SumOverHosts | None = None
        broken: TeamBrokenError | None = None
        while True:
            try:
                wait = waits.send(begun) if broken is None else waits.throw(broken)
            except StopIteration as done:
                answer: Answer = done.value
                return answer
            try:
                begun = self.wait_for(wait)
            except TeamBrokenError as error:
                self.part(str(error))
                broken = error

    def wait_for(self, wait: Wait) -> SumOverHosts | None:
        """Do what a member needs; the sum that it begins. Raises `TeamBrokenError`."""
        if isinstance(wait, BeginSum):
            assert self.exchange is not None
            return self.exchange.begin_all_reduce("sum", wait.vector)
        if isinstance(wait, str):
            self.meet(wait)
        elif isinstance(wait, MeetMembers):
            self._meeting.meet(self._patience_s, [self._workers[rank] for rank in wait.ranks])
        elif isinstance(wait, Gather):
            self.gather(wait.rows)
        elif isinstance(wait, Broadcast):
            assert self.exchange is not None
            root = next(host for host, ranks in enumerate(self._spread) if wait.giver in ranks)
            self.exchange.broadcast("block", wait.block, root)
        elif isinstance(wait, np.ndarray):
            self.sum_over_hosts(wait)
        else:
            wait.finish()
        return None

    def part(self, why: str) -> None:
        """Let the others know at once that this member does not continue, and why."""
        self._formed = 0
        self._meeting.part(why)
        self._leave_hosts(why)

    def close(self) -> None:
        """Part for good."""
        self._formed = 0
        self._meeting.close()
        self._leave_hosts("")

    def _leave_hosts(self, why: str) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.close(why or f"worker {self._worker} has left the team")


def here_of(team: Team, worker: int) -> tuple[int, ...]:
    """The places of the members that are on the host of this one."""
    rank = team.workers.index(worker)
    everywhere = tuple(range(len(team.members)))
    return next((ranks for ranks in team.spread if rank in ranks), everywhere)
