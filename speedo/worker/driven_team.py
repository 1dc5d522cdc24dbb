"""A script's worker as a member of its host's team: gradients are averaged before each step of the optimizer.

All members hold the same weights and the same state of the optimizer. For a step each writes its gradient into memory
that they share; they meet; each averages its own stretch of the vector, weighted by the records behind the gradients;
they meet again, and each steps with the mean. So all come to the same weights, to the bit, and these are those of one
process with the whole batch. Only the leader fetches the center and publishes.

Who comes to a meeting says why: for a step, or because it has nothing to train. If nobody comes for a step, those who
have no records are dealt new ones, by the leader. Else who comes for none takes part with the weight 0.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from speedo.errors import NOT_FINITE, NotFiniteError, TeamBrokenError
from speedo.failpoints import reached
from speedo.leases.lease import Dealt, Lease, NoLease
from speedo.messages import Team, Train
from speedo.sgd_modes.rules import Contribution, mean_into
from speedo.vectors.vector import Vector
from speedo.worker.driven_turn import DrivenWorker
from speedo.worker.team_turn import ALIGNED, Gathering, stretch_of

MOST_DEALT: Final = 64  # rounds at once
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


# What each member says, a row for each; in int64.
_COMES, _SAMPLES, _BAD, _EPOCH, _DEALS, _MADE = range(6)
_SAID: Final = 8  # a cache line
_LENGTH, _SHORT, _ROUNDS = range(3)  # of the deal
_NUMBERS: Final = 3  # of a lease
_SHORT_AS: Final = (None, NoLease.WAIT, NoLease.OVER)


@dataclass(frozen=True)
class TeamSpace:
    """What the members share. `said` and `present` have a part for even and one for odd meetings: who goes on to the
    next one writes there, while others still look at this one."""

    mean: Vector
    gradients: tuple[Vector, ...]
    said: npt.NDArray[np.int64]  # by parity, member, field
    present: npt.NDArray[np.uint8]  # by parity, member, blob
    deal: npt.NDArray[np.int64]  # head, then epoch, start, stop by round and member
    state: npt.NDArray[np.int64]  # bytes of the optimizer's state that is handed on

    @classmethod
    def over(cls, memory: memoryview, members: int, size: int, blobs: int) -> TeamSpace:
        at = 0

        def part(count: int, kind: type[np.generic]) -> npt.NDArray[np.generic]:
            nonlocal at
            found = np.frombuffer(memory, kind, count=count, offset=at)
            at += _whole_lines(found.nbytes)
            return found

        vectors = [part(size, np.float32) for _ in range(members + 1)]
        said = part(2 * members * _SAID, np.int64).reshape(2, members, _SAID)
        present = part(2 * members * blobs, np.uint8).reshape(2, members, blobs)
        deal = part(_ROUNDS + MOST_DEALT * members * _NUMBERS, np.int64)
        state = part(1, np.int64)
        return cls(vectors[0], tuple(vectors[1:]), said, present, deal, state)  # type: ignore[arg-type]

    @staticmethod
    def bytes_for(members: int, size: int, blobs: int) -> int:
        longs = (2 * members * _SAID, _ROUNDS + MOST_DEALT * members * _NUMBERS, 1)
        return (
            (members + 1) * _whole_lines(4 * size)
            + sum(_whole_lines(8 * count) for count in longs)
            + _whole_lines(2 * members * blobs)
        )


def _whole_lines(nbytes: int) -> int:
    line = 4 * ALIGNED
    return -(-nbytes // line) * line


class DrivenTeam:
    """The part of one worker."""

    def __init__(
        self,
        worker: DrivenWorker,
        gathering: Gathering,
        optimizer: Optimizer,
    ) -> None:
        self._worker, self._gathering, self._optimizer = worker, gathering, optimizer
        self._team: Team | None = None
        self._space: TeamSpace | None = None
        self._meetings = 0
        self._epoch = 0
        self.all_ask = False  # all came to the last meeting to ask for records
        self.deal_follows = False  # the leader will deal records after the last meeting
        self.ends = (
            False  # the turn ends with the step of the last meeting, because a member will pause
        )

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
        """Let the others know at once that this member does not go on."""
        self._space = self._team = None
        self._gathering.part()

    def close(self) -> None:
        """Part for good."""
        self._space = None
        self._gathering.close()

    # ------------------------------------------------------------ a turn

    def _load(self, command: Train) -> None:
        team = command.team
        assert team is not None
        worker, weights = self._worker, self._worker.weights
        is_new = self._team is None or self._team.formed != team.formed
        members, size = len(team.members), weights.layout.size
        blobs = self._optimizer.blobs
        memory = self._gathering.gather(team, TeamSpace.bytes_for(members, size, blobs))
        if is_new or self._space is None:
            self._space, self._meetings = TeamSpace.over(memory, members, size, blobs), 0
        self._team = team
        space, rank = self._space, self._rank
        if rank == 0:
            worker.exchange.fetch_center(command.version, space.mean)
        space.said[self._meetings % 2, rank, _MADE] = self._optimizer.made
        self._meet()
        worker.begin_from(command, space.mean)
        if is_new:
            self._agree_on_state(space)

    def _agree_on_state(self, space: TeamSpace) -> None:
        """Who has made the most steps hands its state to those with fewer."""
        made = [int(one) for one in space.said[(self._meetings - 1) % 2, :, _MADE]]
        most = max(made)
        if min(made) == most:
            return
        gives, takes = self._rank == made.index(most), made[self._rank] < most
        state, found = self._optimizer.state() if gives else b"", bytearray()
        if gives:
            space.state[0] = len(state)
        self._meet()
        room, nbytes = space.mean.view(np.uint8), int(space.state[0])
        for at in range(0, nbytes, len(room)):
            part = min(len(room), nbytes - at)
            if gives:
                room[:part] = np.frombuffer(state, np.uint8, part, at)
            self._meet()
            if takes:
                found += room[:part].tobytes()
            self._meet()
        if takes:
            self._optimizer.load_state(bytes(found))
            self._optimizer.made = most

    @property
    def _rank(self) -> int:
        assert self._team is not None
        return self._team.workers.index(self._worker.worker)

    def _meet(self) -> None:
        assert self._team is not None
        self._meetings += 1
        self._gathering.meet(self._team.patience_s)

    # ------------------------------------------------------------ meetings within a turn

    def come(
        self, what: Comes, samples: int = 0, epoch: int = 0, *, wants_deal: bool = False
    ) -> bool:
        """Come for a step with the gradients of so many records, or for none, in this epoch of the script's loop.

        Whether a step follows, with the mean of all in the gradients. If the leader `wants_deal`, one follows.

        Raises `NotFiniteError` in the member whose gradient is not finite, then `TeamBrokenError` in the others.
        """
        began = self._worker.clock()
        follows = self._come(what, samples, epoch, wants_deal=wants_deal)
        self._worker.with_team += self._worker.clock() - began
        return follows

    def _come(self, what: Comes, samples: int, epoch: int, *, wants_deal: bool) -> bool:
        space, rank, optimizer = self._space, self._rank, self._optimizer
        assert space is not None
        assert self._team is not None
        parity = self._meetings % 2
        own, said, present = space.gradients[rank], space.said[parity], space.present[parity]
        is_bad = False
        present[rank] = 0
        if what is Comes.STEP:
            optimizer.take_gradients(own, present[rank])
            is_bad = not _is_finite(own)
        said[rank, : _DEALS + 1] = what, samples, is_bad, epoch, wants_deal
        self._meet()
        # Who has come to the next meeting but one writes to the same place.
        self._epoch = int(said[:, _EPOCH].max())
        self.all_ask = bool((said[:, _COMES] == Comes.ASK).all())
        self.ends = bool((said[:, _COMES] == Comes.LEAVE).any())
        self.deal_follows = self.all_ask or (bool(said[0, _DEALS]) and not self.ends)
        comes = said[:, _COMES] == Comes.STEP
        if not comes.any():
            return False
        self._require_finite(self._team, rank, said[:, _BAD])
        contributions = [
            Contribution(gradient, int(said[member, _SAMPLES]))
            for member, gradient in enumerate(space.gradients)
            if comes[member]
        ]
        share = stretch_of(rank, len(comes), len(own))
        mean_into(
            space.mean[share],
            [Contribution(one.vector[share], one.samples) for one in contributions],
        )
        reached("team-summed")
        some = present[comes].any(axis=0).astype(np.uint8)
        self._meet()
        optimizer.set_gradients(space.mean, some)
        return True

    @property
    def rounds(self) -> int:
        """How many are left of the turn."""
        return 0 if self.team is None else self.team.rounds - self._worker.steps

    def dealt(self, deal: Callable[[int], Dealt]) -> tuple[list[Row], NoLease | None]:
        """This member's records of the next rounds, and why there are no more.

        The leader calls `deal(epoch)` for all, with the latest epoch of their loops.

        To be called by all if the `deal_follows`.
        """
        space, rank = self._space, self._rank
        assert space is not None
        assert self._team is not None
        members = len(self._team.members)
        table = space.deal[_ROUNDS:].reshape(MOST_DEALT, members, _NUMBERS)
        if rank == 0:
            answer = deal(self._epoch)
            table[:] = 0
            for number, leases in enumerate(answer.rounds):
                for member, lease in enumerate(leases):
                    if lease is not None:
                        table[number, member] = lease.epoch, lease.start, lease.stop
            space.deal[_LENGTH] = len(answer.rounds)
            space.deal[_SHORT] = _SHORT_AS.index(answer.short)
        self._meet()
        rows = [
            Lease(*map(int, one)) if one[2] else None for one in table[: space.deal[_LENGTH], rank]
        ]
        short = _SHORT_AS[space.deal[_SHORT]]
        return rows, short

    def _require_finite(self, team: Team, rank: int, bad: npt.NDArray[np.int64]) -> None:
        if bad[rank]:
            raise NotFiniteError(NOT_FINITE)
        if bad.any():
            worker = team.workers[int(bad.argmax())]
            raise TeamBrokenError(f"the gradient of worker {worker} is not finite")


def _is_finite(vector: Vector) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(float(np.dot(vector, vector)))
