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
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from speedo.errors import NOT_FINITE, NotFiniteError, TeamBrokenError
from speedo.exchange.lease import Dealt, Lease, NoLease
from speedo.exchange.vector import Vector
from speedo.messages import Team, Train
from speedo.sgd_modes.rules import Contribution, mean_into
from speedo.system.failpoints import reached
from speedo.worker.membership import Membership
from speedo.worker.script_turn import ScriptWorker
from speedo.worker.team_memory import stretch_of
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
        self._team: Team | None = None
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

    def part(self) -> None:
        """Let the others know at once that this member does not continue."""
        self._space = self._team = None
        self._membership.part()

    def close(self) -> None:
        """Part for good."""
        self._space = None
        self._membership.close()

    # ------------------------------------------------------------ a turn

    def _load(self, command: Train) -> None:
        team = command.team
        assert team is not None
        worker = self._worker
        is_new = self._team is None or self._team.formed != team.formed
        space = self._enter(team)
        self._team = team
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
        self._space = TeamSpace.over(memory, everywhere, len(membership.here), size, blobs)
        return self._space

    def _agree_on_state(self, space: TeamSpace) -> None:
        """Who has made the most steps hands its state to those with fewer."""
        parity = self._parity()
        space.said[parity, self._membership.rank, MADE] = self._optimizer.made
        self._membership.meet("the members here have said their steps")
        self._hear_rows(space.rows[parity])
        self._membership.meet("all hosts have said their steps")
        made = [int(one) for one in space.said[parity, :, MADE]]
        most = max(made)
        if min(made) == most:
            return
        giver, takes = made.index(most), made[self._membership.rank] < most
        gives = self._membership.rank == giver
        state, found = self._optimizer.state() if gives else b"", bytearray()
        if gives:
            space.state[0] = len(state)
        self._spread(space.state, giver)
        room, nbytes = space.mean.view(np.uint8), int(space.state[0])
        for at in range(0, nbytes, len(room)):
            part = min(len(room), nbytes - at)
            if gives:
                room[:part] = np.frombuffer(state, np.uint8, part, at)
            self._spread(room[:part], giver)
            if takes:
                found += room[:part].tobytes()
            self._membership.meet("all have a part of the state")
        if takes:
            self._optimizer.load_state(bytes(found))
            self._optimizer.made = most

    # ------------------------------------------------------------ on this host, and with the others

    def _parity(self) -> int:
        """Where all write what they say this time: at least one meeting is between two times."""
        self._times += 1
        return self._times % 2

    def _hear_rows(self, rows: npt.NDArray[np.uint8]) -> None:
        """The member that exchanges for this host fills in the rows of the other hosts."""
        exchange = self._membership.exchange
        if exchange is not None and self._team is not None:
            own = rows[list(self._membership.here)]
            exchange.all_gather("rows", own, self._team.spread, rows)

    def _spread(self, block: npt.NDArray[Any], giver: int) -> None:
        """Return once what this member has written there is there on all hosts."""
        assert self._team is not None
        spread = self._team.spread
        self._membership.meet("it is there on this host")
        if self._membership.exchange is not None:
            root = next(host for host, ranks in enumerate(spread) if giver in ranks)
            self._membership.exchange.broadcast("block", block, root)
        if spread:
            self._membership.meet("it is there on all hosts")

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
        assert self._team is not None
        team, parity = self._team, self._parity()
        own = space.gradients[here.index(rank)]
        said, present = space.said[parity], space.present[parity]
        is_bad = False
        present[rank] = 0
        if what is Comes.STEP:
            optimizer.take_gradients(own, present[rank])
            is_bad = not _is_finite(own)
        ends = what is Comes.LEAVE or self._worker.leaves()
        said[rank, : ENDS + 1] = what, samples, is_bad, epoch, wants_deal, ends
        self._membership.meet("all have said what they come for")
        self._require_finite(said)
        self._hear_rows(space.rows[parity])
        share = stretch_of(here.index(rank), [1] * len(here), len(own))
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

    @property
    def rounds(self) -> int:
        """How many are left of the turn."""
        return 0 if self.team is None else self.team.rounds - self._worker.steps

    @property
    def next_deal(self) -> tuple[int, int] | None:
        """The number of the next deal of its team, as in `DealRequest`; None if it is in no team."""
        return None if self._team is None else (self._team.formed, self._deals + 1)

    def dealt(self, deal: Callable[[int], Dealt]) -> tuple[list[Row], NoLease | None]:
        """This member's records of the next rounds, and why there are no more.

        The leader calls `deal(epoch)` for all, with the latest epoch of their loops.

        To be called by all if the `deal_follows`.
        """
        space, rank = self._space, self._membership.rank
        assert space is not None
        assert self._team is not None
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
        self._spread(space.deal, 0)
        self._deals += 1
        rows = [
            Lease(*map(int, one)) if one[2] else None for one in table[: space.deal[LENGTH], rank]
        ]
        return rows, _SHORT_AS[space.deal[SHORT]]

    def _require_finite(self, said: npt.NDArray[np.int64]) -> None:
        """Of the gradients of this host: the team breaks, so other hosts need not know which it is."""
        assert self._team is not None
        if said[self._membership.rank, BAD]:
            raise NotFiniteError(NOT_FINITE)
        for member in self._membership.here:
            if said[member, BAD]:
                worker = self._team.workers[member]
                raise TeamBrokenError(f"the gradient of worker {worker} is not finite")


def _is_finite(vector: Vector) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(float(np.dot(vector, vector)))
