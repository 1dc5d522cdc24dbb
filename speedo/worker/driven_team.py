"""A script's worker as a member of a team: gradients are averaged before each step of the optimizer.

All members hold the same weights and the same state of the optimizer. For a step each writes its gradient into memory
that the members of its host share; they meet; each averages one part of the vector, weighted by the records of the
gradients; they meet again, and each steps with the mean. So the weights of all are bit-identical, and those of one
process with the whole batch. Only the leader publishes.

A team over several hosts does this in each of them. The first member of each host fetches the center for it, and
exchanges with those of the other hosts (`speedo.exchange.host_exchange`): the members' reasons, then the hosts' means.

A member comes to a meeting for a reason: for a step, or because it has nothing to train. If none comes for a step, the
leader deals new records to members without records. Otherwise a member without records takes part with weight 0.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from speedo.errors import NOT_FINITE, NotFiniteError, TeamBrokenError
from speedo.exchange.lease import Dealt, Lease, NoLease
from speedo.exchange.vector import Vector
from speedo.messages import Team, Train
from speedo.sgd_modes.rules import Contribution, mean_into
from speedo.system.failpoints import reached
from speedo.worker.membership import Membership, Seat
from speedo.worker.script_turn import ScriptWorker
from speedo.worker.team_memory import is_finite, stretch_of
from speedo.worker.team_space import (
    BAD,
    COMES,
    DEALS,
    ENDS,
    EPOCH,
    LENGTH,
    MADE,
    SAMPLES,
    SHORT,
    TeamSpace,
)
from speedo.worker.team_state import hand_over, spread

# A turn ends after this many times the seconds that it should take, and so many seconds more.
LONG: Final = 2.0
LONG_S: Final = 1.0
_SHORT_AS: Final = (None, NoLease.WAIT, NoLease.OVER)
Row = Lease | None


class Comes(enum.IntEnum):
    """What a member comes to a meeting for."""

    STEP = 1
    IDLE = 2  # the others train the last records of an epoch
    ASK = 3  # it has no records left
    LEAVE = 4  # it will pause: the turn ends with this step


class Optimizer(Protocol):
    """The optimizer of a member's script, and its model's gradients; vectors are of the layout of the weights."""

    blobs: int  # parameters and buffers of the layout
    made: int  # steps

    def take_gradients(self, out: Vector, present: npt.NDArray[np.uint8]) -> None:
        """Copy gradients and moving averages into `out`; `present` says which parameters have a gradient."""
        ...

    def set_gradients(self, mean: Vector, present: npt.NDArray[np.uint8]) -> None:
        """The reverse."""
        ...

    def state(self) -> bytes:
        """Its state, for another member's `load_state`."""
        ...

    def load_state(self, state: bytes) -> None: ...


class DrivenTeam:
    """The part of one worker."""

    def __init__(
        self,
        worker: ScriptWorker,
        membership: Membership,
        optimizer: Optimizer,
    ) -> None:
        self._worker, self._membership, self._optimizer = worker, membership, optimizer
        self._seat: Seat | None = None
        self._space: TeamSpace | None = None
        self._times = 0  # that all came
        self._epoch = 0
        self._deals = 0  # that this one got in this team
        self.all_ask = False  # all came to the last meeting to ask for records
        self.deal_follows = False  # the leader will deal records after the last meeting
        # The turn ends with the step of the last meeting, because a member will pause, or is to leave.
        self.ends = False

    @property
    def team(self) -> Team | None:
        """The team of the present turn."""
        command = self._worker.command
        return None if command is None else command.team

    @property
    def members(self) -> tuple[tuple[int, int, int], ...]:
        """As `Team.members`."""
        return () if self.team is None else self.team.members

    def begin(self, command: Train) -> None:
        """Begin a turn of the team, from the same weights and state. Raises `TeamBrokenError`, as the other calls."""
        self.ends = False
        self._worker.begin(command, self._load)

    def part(self, why: str) -> None:
        """Let the others know at once that this member does not continue, and why."""
        self._space = self._seat = None
        self._membership.part(why)

    def close(self) -> None:
        """Part for good."""
        self._space = None
        self._membership.close()

    # ------------------------------------------------------------ a turn

    def _load(self, command: Train) -> None:
        team = command.team
        assert team is not None
        worker = self._worker
        is_new = self._seat is None or self._seat.team.formed != team.formed
        space = self._enter(team)
        if is_new:
            self._times = self._deals = 0
        if self._membership.is_first:
            worker.exchange.fetch_center(command.version, space.mean)
        self._membership.meet("the center is there")
        worker.begin_from(command, space.mean)
        if is_new:
            self._agree_on_state(space)

    def _enter(self, team: Team) -> TeamSpace:
        """Meet the members of this host, and reach the other hosts; of the same gathering all stays as it is."""
        everywhere, size = len(team.members), self._worker.weights.layout.size
        blobs, membership = self._optimizer.blobs, self._membership
        memory = membership.enter(
            team, lambda here: TeamSpace.bytes_for(everywhere, here, size, blobs)
        )
        here = membership.here
        self._seat = Seat(team, here, here.index(membership.rank))
        self._space = TeamSpace.over(memory, everywhere, len(here), size, blobs)
        return self._space

    def _agree_on_state(self, space: TeamSpace) -> None:
        """Who has made the most steps hands its state to those with fewer."""
        assert self._seat is not None
        optimizer, membership, parity = self._optimizer, self._membership, self._parity()
        space.said[parity, membership.rank, MADE] = optimizer.made
        membership.meet("the members here have said their steps")
        membership.gather(space.rows[parity])
        membership.meet("all hosts have said their steps")
        made = [int(one) for one in space.said[parity, :, MADE]]
        most = max(made)
        if min(made) == most:
            return
        has_it = made[membership.rank] == most
        room, state = space.mean.view(np.uint8), optimizer.state if has_it else None
        handed = hand_over(self._seat, made.index(most), space.state, room, state)
        found = membership.carry(handed)
        if not has_it:
            optimizer.load_state(found)
            optimizer.made = most

    # ------------------------------------------------------------ on this host, and with the others

    def _parity(self) -> int:
        """Where all write what they say this time: at least one meeting is between two times."""
        self._times += 1
        return self._times % 2

    def _average_hosts(self, mean: Vector, samples: Sequence[int]) -> None:
        """The member that exchanges for this host makes its mean that of all hosts, by their samples."""
        exchange = self._membership.exchange
        if exchange is None:
            return
        own = samples[exchange.own]
        if own:
            np.multiply(mean, np.float32(own / sum(samples)), out=mean)
        else:
            mean.fill(0.0)
        self._membership.sum_over_hosts(mean)

    # ------------------------------------------------------------ meetings within a turn

    def come(
        self, what: Comes, samples: int = 0, epoch: int = 0, *, wants_deal: bool = False
    ) -> bool:
        """Come for a step with the gradients of this many records, or for none, in this epoch of the script's loop.

        Whether a step follows, with the mean of all in the gradients. If the leader `wants_deal`, one follows.

        Raises `NotFiniteError` in the member whose gradient is not finite, then `TeamBrokenError` in the others.
        """
        began = self._worker.clock()
        follows = self._come(what, samples, epoch, wants_deal=wants_deal)
        self._worker.with_team += self._worker.clock() - began
        return follows

    def _come(self, what: Comes, samples: int, epoch: int, *, wants_deal: bool) -> bool:
        space, optimizer = self._space, self._optimizer
        rank, here = self._membership.rank, self._membership.here
        assert space is not None
        assert self._seat is not None
        team, parity = self._seat.team, self._parity()
        own = space.gradients[self._seat.place]
        said, present = space.said[parity], space.present[parity]
        is_bad = False
        present[rank] = 0
        if what is Comes.STEP:
            optimizer.take_gradients(own, present[rank])
            is_bad = not is_finite(own)
        ends = what is Comes.LEAVE or self._worker.leaves() or self._is_long(team)
        said[rank, : ENDS + 1] = what, samples, is_bad, epoch, wants_deal, ends
        self._membership.meet("all have said what they come for")
        self._require_finite(said)
        self._membership.gather(space.rows[parity])
        share = stretch_of(self._seat.place, [1] * len(here), len(own))
        contributions = [
            Contribution(gradient[share], int(said[member, SAMPLES]))
            for member, gradient in zip(here, space.gradients, strict=True)
            if said[member, COMES] == Comes.STEP
        ]
        if contributions:
            mean_into(space.mean[share], contributions)
            reached("team-summed")
        if contributions or team.spread:
            self._membership.meet("the mean of this host is there")
        self._epoch = int(said[:, EPOCH].max())
        self.all_ask = bool((said[:, COMES] == Comes.ASK).all())
        self.ends = bool(said[:, ENDS].any())
        self.deal_follows = self.all_ask or (bool(said[0, DEALS]) and not self.ends)
        comes = said[:, COMES] == Comes.STEP
        if not comes.any():
            return False
        if team.spread:
            trained = np.where(comes, said[:, SAMPLES], 0)
            self._average_hosts(space.mean, [int(trained[list(one)].sum()) for one in team.spread])
            self._membership.meet("the mean of all hosts is there")
        optimizer.set_gradients(space.mean, present[comes].any(axis=0).astype(np.uint8))
        return True

    def _is_long(self, team: Team) -> bool:
        """Whether the turn takes much longer than the master expects, who has not seen what a step takes."""
        return 0.0 < team.seconds < (self._worker.seconds - LONG_S) / LONG

    @property
    def rounds(self) -> int:
        """How many are left of the turn."""
        return 0 if self.team is None else self.team.rounds - self._worker.steps

    @property
    def next_deal(self) -> tuple[int, int] | None:
        """The number of the next deal of its team, as in `DealRequest`; None if it is in no team."""
        return None if self._seat is None else (self._seat.team.formed, self._deals + 1)

    def dealt(self, deal: Callable[[int], Dealt]) -> tuple[list[Row], NoLease | None]:
        """This member's records of the next rounds, and why there are no more.

        The leader calls `deal(epoch)` for all, with the latest epoch of their loops.

        To be called by all if the `deal_follows`.
        """
        space, rank = self._space, self._membership.rank
        assert space is not None
        assert self._seat is not None
        table = space.dealt
        if rank == 0:
            answer = deal(self._epoch)
            reached("team-dealt")
            table[:] = 0
            for number, leases in enumerate(answer.rounds):
                for member, lease in enumerate(leases):
                    if lease is not None:
                        table[number, member] = lease.epoch, lease.start, lease.stop
            space.deal[LENGTH] = len(answer.rounds)
            space.deal[SHORT] = _SHORT_AS.index(answer.short)
        self._membership.carry(spread(self._seat, space.deal, 0))
        self._deals += 1
        rows = [
            Lease(*map(int, one)) if one[2] else None for one in table[: space.deal[LENGTH], rank]
        ]
        return rows, _SHORT_AS[space.deal[SHORT]]

    def _require_finite(self, said: npt.NDArray[np.int64]) -> None:
        """Of the gradients of this host: the team breaks, so other hosts need not know which it is."""
        assert self._seat is not None
        if said[self._seat.rank, BAD]:
            raise NotFiniteError(NOT_FINITE)
        for member in self._seat.here:
            if said[member, BAD]:
                worker = self._seat.team.workers[member]
                raise TeamBrokenError(f"the gradient of worker {worker} is not finite")
