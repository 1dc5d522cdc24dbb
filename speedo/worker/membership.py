"""A worker's place in its team, and its ways to the other members: memory on its host, an exchange between hosts.

The members of a host meet and share memory (`speedo.exchange.team_meeting`). The first of them also has a connection
to the first members of the other hosts (`speedo.exchange.host_exchange`), and sums over the hosts for all of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.team_meeting import TeamMeeting
from speedo.exchange.vector import Vector
from speedo.messages import Team

LEAST_PATIENCE_S: Final = 5.0  # for another member, with three rounds; a stretch has very many


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

    def enter(self, team: Team, size: Callable[[int], int]) -> memoryview:
        """Be a member of this team: the memory of `size(members of this host)` bytes that these share.

        Connections of the same gathering are used again. Raises `TeamBrokenError`.
        """
        self.rank, self.here = team.workers.index(self._worker), here_of(team, self._worker)
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

    def meet(self) -> None:
        """Return once all members of this host are here. Raises `TeamBrokenError`."""
        self._meeting.meet(self._patience_s)

    def sum_over_hosts(self, vector: Vector) -> None:
        """Make it the sum of those of all hosts, the same bits in each. Raises `TeamBrokenError`."""
        if self.exchange is not None:
            self.exchange.all_reduce("sum", vector, np.add)

    def part(self, why: str = "") -> None:
        """Let the others know at once that this member does not continue; other hosts hear why."""
        self._formed = 0
        self._meeting.part()
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
