"""A script's worker as a member of a team: gradients are averaged when each backward pass ends.

All members hold the same weights and the same state of the optimizers. After a backward pass each writes its gradient
into memory that the members of its host share; they meet; each averages one part of the vector, weighted by the records
of the gradients; they meet again, and each has the mean. So each clips and steps with the same gradient, and the
weights of all are bit-identical, and those of one process with the whole batch. Only the leader publishes.

A team over several hosts does this in each of them. The first member of each host fetches the center for it, and
exchanges with those of the other hosts (`speedo.exchange.host_exchange`): the members' reasons, then the hosts' means.

A member comes to a meeting for a reason: with a gradient, for a step, or because it has nothing to train. If none comes
with a gradient or for a step, the leader deals new records to members without records. Otherwise a member without
records takes part with weight 0, and makes the others' step with the gradient that they have then, which is clipped.
If all came with a gradient, each makes its step without another meeting, but for the last step of a turn, and but where
scripts make several backward passes for a step: there who comes for a step waits for those that come with a gradient.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from speedo.errors import NOT_FINITE, NotFiniteError, ScriptMistake, TeamBrokenError
from speedo.exchange.lease import Dealt, Lease, NoLease
from speedo.exchange.vector import Vector, as_bytes, checksum
from speedo.messages import Team, Train
from speedo.sgd_modes.rules import Contribution, mean_into
from speedo.system.failpoints import reached
from speedo.worker.driven_meeting import Comes, Follows, Optimizers
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
    OPTIMIZER,
    OWN,
    RATES,
    SAME,
    SAMPLES,
    SEVERAL,
    SHORT,
    TeamSpace,
)
from speedo.worker.team_state import hand_over, spread

# A turn ends after this many times the seconds that it should take, and so many seconds more.
LONG: Final = 2.0
LONG_S: Final = 1.0
ROUNDING: Final = 1e-4  # of the largest weight
MOST_SAME: Final = 5  # means of bit-identical gradients before it is said
_SHORT_AS: Final = (None, NoLease.WAIT, NoLease.OVER)
Row = Lease | None


class DrivenTeam:
    """The part of one worker."""

    def __init__(
        self, worker: ScriptWorker, membership: Membership, optimizers: Optimizers
    ) -> None:
        self._worker, self._membership, self._optimizers = worker, membership, optimizers
        self._seat: Seat | None = None
        self._space: TeamSpace | None = None
        self._times = 0  # that all came
        self._epoch = 0
        self._deals = 0  # that this one got in this team
        self.deal_follows = False  # the leader will deal records after the last meeting
        # The turn ends with the next step, because a member will pause, or is to leave.
        self.ends = False
        self.is_complete = False  # all came to the last mean with a gradient, and step next
        self.several = False  # some of the scripts make several backward passes for a step
        self.steps_of = 0  # the optimizer of the step that others make
        self.is_own = False  # the last step was that of this member's script
        self._made = -1  # steps at the last mean of the turn
        self._fresh: tuple[int, ...] = ()  # who came to the last mean with a gradient
        self._bad: tuple[int, ...] = ()  # whose was not finite
        # Own weights at the end of a turn, and from the center.
        self._has_noted = self._has_differed = False
        self._same = 0  # means in a row of gradients that are bit-identical

    @property
    def team(self) -> Team | None:
        """The team of the present turn."""
        command = self._worker.command
        return None if command is None else command.team

    def begin(self, command: Train) -> None:
        """Begin a turn of the team, from the same weights and state. Raises `TeamBrokenError`, as the other calls."""
        self.ends, self.is_complete, self._made, self._bad, self._fresh = False, False, -1, (), ()
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
        # What the script has changed since the last step, as by clipping its weights, stays.
        has_it = self._has_noted and not is_new and np.array_equal(self._own, space.mean)
        if self._has_noted and not (is_new or has_it or self._has_differed):
            self._look_at_weights(space.mean)
        self._has_noted = False
        worker.begin_from(command, space.mean, has_it=has_it)
        if is_new:
            self._agree_on_state(space)

    def note_weights(self) -> None:
        """To be called when a turn ends: the weights are those of the next center, if all members have the same."""
        if self._space is not None:
            self._worker.weights.read_weights(self._own)
            self._has_noted = True

    def _look_at_weights(self, center: Vector) -> None:
        """Say it once if own weights have become others than the center, by more than rounding."""
        if float(np.abs(self._own - center).max()) > ROUNDING * float(np.abs(center).max()):
            self._has_differed = True
            print(
                f"speedo: the weights of worker {self._worker.worker} became others than those of its team, and are "
                "replaced by those: between the backward pass and the step all workers do the same to the gradients "
                "(random numbers there have one seed)",
                file=sys.stderr,
            )

    def _enter(self, team: Team) -> TeamSpace:
        """Meet the members of this host, and reach the other hosts; of the same gathering all stays as it is."""
        everywhere, size = len(team.members), self._worker.weights.layout.size
        blobs, membership = self._optimizers.blobs, self._membership
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
        optimizers, membership, parity = self._optimizers, self._membership, self._parity()
        space.said[parity, membership.rank, MADE] = optimizers.made
        membership.meet("the members here have said their steps")
        membership.gather(space.rows[parity])
        membership.meet("all hosts have said their steps")
        made = [int(one) for one in space.said[parity, :, MADE]]
        most = max(made)
        if min(made) == most:
            return
        has_it = made[membership.rank] == most
        room, state = space.mean.view(np.uint8), optimizers.state if has_it else None
        handed = hand_over(self._seat, made.index(most), space.state, room, state)
        found = membership.carry(handed)
        if not has_it:
            optimizers.load_state(found)
            optimizers.made = most

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
        self,
        what: Comes,
        samples: int = 0,
        epoch: int = 0,
        *,
        wants_deal: bool = False,
        optimizer: int = 0,
    ) -> Follows:
        """Come with the gradients of this many records, or for another reason, in this epoch of the script's loop.

        What follows: the mean is in the gradients, or a step, with the gradients of those that step. A mean follows
        for one that comes for a step, too, if others accumulate more. If the leader `wants_deal`, one follows a mean.

        Raises `TeamBrokenError`, and `ScriptMistake` if some make a step that others do not make.
        """
        began = self._worker.clock()
        while True:
            follows = self._come(what, samples, epoch, wants_deal=wants_deal, optimizer=optimizer)
            if what not in (Comes.GRADIENT, Comes.STEP) or follows is not Follows.SUM:
                break
        self._worker.with_team += self._worker.clock() - began
        return follows

    def _come(
        self, what: Comes, samples: int, epoch: int, *, wants_deal: bool, optimizer: int
    ) -> Follows:
        space, optimizers = self._space, self._optimizers
        rank = self._membership.rank
        assert space is not None
        assert self._seat is not None
        team, parity = self._seat.team, self._parity()
        own = self._own
        said, present = space.said[parity], space.present[parity]
        is_bad, sum_of_own = False, 0
        present[rank] = 0
        if what is Comes.GRADIENT:
            optimizers.take_gradients(own, present[rank])
            is_bad = not is_finite(own)
            if self._same < MOST_SAME:
                sum_of_own = checksum(as_bytes(own)) >> 1
        ends = what is Comes.LEAVE or self._worker.leaves() or self._is_long(team)
        said[rank, : SAME + 1] = (
            *(what, samples, is_bad, epoch, wants_deal, ends, optimizers.made, optimizer),
            *(self.several, optimizers.rates_key(), self.is_own, sum_of_own),
        )
        came = self._worker.clock()
        self._membership.meet("all have said what they come for")
        if not team.spread:
            self._worker.for_slower += self._worker.clock() - came
        else:
            self._membership.gather(space.rows[parity])
            self._membership.meet("all hosts have said what they come for")
        comes = said[:, COMES]
        self._epoch = int(said[:, EPOCH].max())
        self.ends = self.ends or bool(said[:, ENDS].any())
        self.several = bool(said[:, SEVERAL].any())
        self.deal_follows = bool((comes == Comes.ASK).all() or (said[0, DEALS] and not self.ends))
        if (comes == Comes.SUM).any():
            self._sum(space, said)
            return Follows.SUM
        if (comes == Comes.GRADIENT).any():
            self._mean(space, said, present)
            return Follows.MEAN
        if (comes == Comes.STEP).any():
            self._step(space, said, present)
            return Follows.STEP
        return Follows.NOTHING

    def add_up(self, values: Vector) -> None:
        """Make it the sum of those of all members that come with one; what others come for waits."""
        began, own = self._worker.clock(), self._own
        own[: values.size] = values
        self._come(Comes.SUM, values.size, 0, wants_deal=False, optimizer=0)
        assert self._space is not None
        values[:] = self._space.mean[: values.size]
        self._worker.with_team += self._worker.clock() - began

    def _sum(self, space: TeamSpace, said: npt.NDArray[np.int64]) -> None:
        comes, here = said[:, COMES] == Comes.SUM, self._membership.here
        sizes = set(said[comes, SAMPLES].tolist())
        if len(sizes) > 1:
            raise ScriptMistake(
                "workers add up statistics of different SyncBatchNorm layers: all make the same forward passes"
            )
        total = space.mean[: sizes.pop()]
        if self._membership.is_first:
            total.fill(0.0)
            for member, values in zip(here, space.gradients, strict=True):
                if comes[member]:
                    total += values[: total.size]
            self._membership.sum_over_hosts(total)
        self._membership.meet("the sum of all is there")

    @property
    def _own(self) -> Vector:
        assert self._space is not None
        assert self._seat is not None
        return self._space.gradients[self._seat.place]

    def _mean(
        self, space: TeamSpace, said: npt.NDArray[np.int64], present: npt.NDArray[np.uint8]
    ) -> None:
        """Put the mean of those that came with a gradient in everybody's gradients."""
        assert self._seat is not None
        team, here, optimizers = self._seat.team, self._membership.here, self._optimizers
        comes = said[:, COMES] == Comes.GRADIENT
        self._require_equal_steps(said)
        share = stretch_of(self._seat.place, [1] * len(here), space.mean.size)
        contributions = [
            Contribution(gradient[share], int(said[member, SAMPLES]))
            for member, gradient in zip(here, space.gradients, strict=True)
            if comes[member]
        ]
        if contributions:
            with np.errstate(invalid="ignore", over="ignore"):
                mean_into(space.mean[share], contributions)
            reached("team-summed")
        self._membership.meet("the mean of this host is there")
        if team.spread:
            trained = np.where(comes, said[:, SAMPLES], 0)
            self._average_hosts(space.mean, [int(trained[list(one)].sum()) for one in team.spread])
            self._membership.meet("the mean of all hosts is there")
        optimizers.set_gradients(space.mean, present[comes].any(axis=0).astype(np.uint8))
        self.several = self.several or bool(said[0, MADE] == self._made)
        self._made = int(said[0, MADE])
        self.is_complete = bool(comes.all()) and not (self.several or self.ends)
        self._fresh = tuple(np.flatnonzero(comes).tolist())
        self._bad = tuple(np.flatnonzero(comes & (said[:, BAD] != 0)).tolist())
        self._look_at_sums(said)
        if (said[:, RATES] != said[0, RATES]).any():
            self._agree_on_rates(space, said)

    def _step(
        self, space: TeamSpace, said: npt.NDArray[np.int64], present: npt.NDArray[np.uint8]
    ) -> None:
        """Give the gradients of one that steps, which its script may have clipped, to those that lack them."""
        assert self._seat is not None
        steps = np.flatnonzero(said[:, COMES] == Comes.STEP).tolist()
        rank, fresh = self._membership.rank, [one for one in steps if one in self._fresh]
        giver = min(fresh or steps)
        self.steps_of = int(said[giver, OPTIMIZER])
        if len(fresh) == len(said):
            return
        if rank == giver:
            self._optimizers.take_gradients(space.mean, present[rank])
        self._membership.carry(spread(self._seat, present[giver], giver))
        self._membership.carry(spread(self._seat, space.mean, giver))
        if rank not in fresh:
            self._optimizers.set_gradients(space.mean, present[giver])

    def _require_equal_steps(self, said: npt.NDArray[np.int64]) -> None:
        made = said[:, MADE]
        if self.is_complete and not self.several:
            made = made + (said[:, COMES] == Comes.STEP)
        if (made != made[0]).any():
            if self.several:  # the next steps are made together
                raise TeamBrokenError("some workers made a step where others accumulate gradients")
            workers = self.team.workers if self.team is not None else ()
            most, least = (workers[int(find(made))] for find in (np.argmax, np.argmin))
            raise ScriptMistake(
                f"worker {most} has made a step of the optimizer where worker {least} has made none: all workers make "
                "a step after the same number of backward passes; one that not all make goes into "
                "`with run.accumulate():`"
            )

    def require_finite(self) -> None:
        """Raise `NotFiniteError` in the member whose gradient is not finite, then `TeamBrokenError` in the others.

        To be called before a step: one that a GradScaler leaves out is none.
        """
        if not self._bad or self._optimizers.is_finite():
            return
        assert self._seat is not None
        if self._seat.rank in self._bad:
            raise NotFiniteError(NOT_FINITE)
        worker = self._seat.team.workers[self._bad[0]]
        raise TeamBrokenError(f"the gradient of worker {worker} is not finite")

    def _look_at_sums(self, said: npt.NDArray[np.int64]) -> None:
        """Say it once if all have the same gradients again and again: they train the same records."""
        sums = said[:, SAME]
        if self._same >= MOST_SAME or len(sums) == 1:
            return
        self._same = self._same + 1 if sums[0] and (sums == sums[0]).all() else 0
        if self._same == MOST_SAME and self._membership.rank == 0:
            print(
                f"speedo: all workers had the same gradients {MOST_SAME} times in a row, so they train the same "
                "records: divide them by run.share, or seed each worker's own choice by run.rank",
                file=sys.stderr,
            )

    def _agree_on_rates(self, space: TeamSpace, said: npt.NDArray[np.int64]) -> None:
        """Who made the last step by its own script gives its learning rates and schedulers to who has others."""
        assert self._seat is not None
        giver = int(np.argmax(said[:, OWN]))
        rank, room = self._membership.rank, space.mean.view(np.uint8)
        has_them = bool(said[rank, RATES] == said[giver, RATES])
        self._membership.meet("all have the mean")
        rates = self._optimizers.rates if has_them else None
        found = self._membership.carry(hand_over(self._seat, giver, space.state, room, rates))
        if not has_them:
            self._optimizers.load_rates(found)

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
