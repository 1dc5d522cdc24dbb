"""A script's turns in which the workers average their gradients when a backward pass ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from speedo.errors import ConfigError, ScriptMistake, SpeedoError
from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.lease import DealRequest, Dealt, Lease, LeaseRequest, NoLease
from speedo.exchange.team_meeting import TeamMeeting
from speedo.exchange.vector import Vector
from speedo.messages import Team, Train
from speedo.run.script.turns import TurnSource
from speedo.run.script_link import Start
from speedo.worker.driven_meeting import Comes, Follows
from speedo.worker.driven_team import DrivenTeam, Row
from speedo.worker.membership import Membership
from speedo.worker.script_turn import ScriptWorker
from speedo.worker.share import RecordShare
from speedo.worker.team_space import MOST_DEALT

EXCHANGES: Final = ("gradients", "deltas")
# Before records are asked for again, of which the master does not know yet that they are trained, and how often.
AGAIN_S: Final = 0.02
MOST_TIMES: Final = 50
FEW_ROWS: Final = 8  # that a loader's processes have before them, when more are dealt


def check_exchange(exchange: str | None, *, has_optimizer: bool) -> None:
    """Raises `ConfigError` for what cannot be in any run."""
    if exchange is not None and exchange not in EXCHANGES:
        raise ConfigError(f'exchange is {exchange!r}: use "gradients" or "deltas"')
    if exchange == "gradients" and not has_optimizer:
        raise ConfigError(
            'exchange="gradients" is for a torch.nn.Module with its optimizer: leave it out for NumPy arrays'
        )


def exchanges_gradients(exchange: str | None, stepped: Any, start: Start) -> bool:
    """Whether gradients are exchanged in this run. Raises `ConfigError` if they are asked for and cannot be."""
    against = getattr(start.settings.spec, "no_gradients", "")
    if exchange == "gradients" and against:
        raise ConfigError(
            f'speedo.join(..., exchange="gradients") cannot be in this run, because {against}'
        )
    return stepped is not None and exchange != "deltas" and not against


class GradientTurns:
    """What a joined run does in its turns where gradients are exchanged.

    `stepped` has the optimizer. `has_turn` waits for a turn, `end_turn` ends it, `lose_turn` gives it up; all are those
    of the joined run, as are `turns` and `share`.
    """

    def __init__(
        self,
        stepped: Any,
        has_turn: Callable[[], bool],
        end_turn: Callable[[], None],
        lose_turn: Callable[[SpeedoError], None],
        turns: TurnSource,
        share: RecordShare,
    ) -> None:
        self._gradients = stepped.gradients()
        self._turns, self._share = turns, share
        self._request: LeaseRequest | None = None  # the last one
        self._is_short = False  # the last deal was
        self._has_turn, self._end_turn, self._lose_turn = has_turn, end_turn, lose_turn
        self._worker: ScriptWorker | None = None
        self._meeting: TeamMeeting | None = None
        self._team: DrivenTeam | None = None
        self._rows = deque[Row]()
        self.idle = False  # the present step is one of the others
        self.lost = False  # the present step is none, because its turn is lost
        self.accumulates = False  # backward passes now are not exchanged
        self._averages = 0  # exchanges so far
        self._of_step: dict[int, int] = {}  # by optimizer, the exchanges before its last step
        self._is_due = False  # gradients have come since the last exchange, and no step
        self._batch, self._counted = 1, 0  # records of the last gradient, and since the last step
        # Records given since the last step, at the last pass, and whether steps have several batches.
        self._at_pass, self._several = 0, False
        self._is_pending = False  # the others have a mean, and have not stepped with it
        self._is_stale = False  # the script has gradients of a turn that is lost
        self._is_void = False  # the turn was lost within the present forward or backward pass
        # Records are asked for again once those that were read are trained.
        self.trains_first = False
        self.leaves = False  # this worker will pause, and has the present turn end
        self._times = 0

    def listen(self, folder: Path, worker: int, incarnation: int) -> None:
        """Be found in this folder by the others of the host, before a master can have them meet."""
        if self._team is not None:
            self._team.close()
            self._team = self._meeting = None
        self._meeting = self._meeting or TeamMeeting(folder, worker, incarnation)

    def open(self, worker: ScriptWorker, reach: Callable[[Team], HostExchange]) -> None:
        """Meet those of the host, and `reach` those of the team's other hosts."""
        assert self._meeting is not None
        self._worker = worker
        membership = Membership(worker.worker, self._meeting, reach)
        self._team = DrivenTeam(worker, membership, self._gradients)

    def close(self) -> None:
        """Meet nobody any more. May be called twice."""
        self._gradients.remove()
        team, self._team = self._team, None
        if team is not None:
            team.close()

    def begin(self, command: Train) -> None:
        """Begin a turn, of the team or alone."""
        assert self._worker is not None
        assert self._team is not None
        self._is_pending = self.lost = False
        if self._is_stale:
            self._gradients.forget()
            self._is_stale = self._is_due = False
        if command.team is None:
            self._worker.begin(command)
        else:
            self._team.begin(command)

    def note_weights(self) -> None:
        """The present turn ends."""
        if self.in_team is not None:
            self.in_team.note_weights()

    def part(self, why: str) -> None:
        """The turn is lost."""
        assert self._team is not None
        missed = self._team.next_deal
        self._team.part(why)
        if missed is not None:
            self._turns.not_dealt(missed)
        self._is_stale = True

    # ------------------------------------------------------------ steps

    def on_backward(self, has_ended: Callable[[], None]) -> None:
        """Call it at the end of each backward pass, which `after_backward` is to follow."""
        self._gradients.on_backward(has_ended)

    def after_backward(self, given: int) -> None:
        """A backward pass has ended: put the mean of all workers' gradients in the place of this worker's.

        `run.share` has given this many records since the last step, 0 where it is not used.
        """
        self._several |= self.accumulates or 0 < self._at_pass < given
        self._is_due, self._at_pass = not self._is_void, given
        if self.accumulates or self.idle:
            return
        self.lost = self._is_void
        self._is_stale = self._is_void = False
        if not self.lost and self._has_turn() and self.in_team is not None:
            self._average(self.in_team, given)

    def _average(self, team: DrivenTeam, given: int) -> None:
        # Another pass over the same records weighs as the last one.
        self._batch = given - self._counted if given > self._counted else self._batch
        self._counted, self._is_due = given, False
        self._averages += 1
        team.several |= self._several
        try:
            team.come(Comes.GRADIENT, self._batch, self._epoch, wants_deal=self._wants_deal())
            if team.deal_follows:
                self._take_deal(team)
        except SpeedoError as problem:
            self._lose(problem)

    def add_up(self, values: Vector) -> None:
        """Make it the sum of those of all workers that have a batch."""
        if self._is_void or not self._has_turn() or self.in_team is None:
            return
        try:
            self.in_team.add_up(values)
        except SpeedoError as problem:
            self._lose(problem)
            self._is_void = True

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Backward passes inside are not exchanged."""
        self.accumulates = True
        try:
            yield
        finally:
            self.accumulates = False

    def before_step(self, given: int, *, closure: bool, number: int) -> None:
        """Optimizer `number` will step: with the mean of all workers' gradients, which its script may have clipped."""
        if self.idle:
            return
        if closure:
            raise ScriptMistake(
                "optimizer.step(closure) computes gradients while it steps, so they cannot be exchanged before: call "
                'optimizer.step() after loss.backward(), or use speedo.join(..., exchange="deltas")'
            )
        is_new = self._averages != self._of_step.get(number, 0)
        if not is_new or (self._is_due and not self.lost):  # no backward pass has brought them
            self.after_backward(given)
        self._of_step[number], self._at_pass, self._is_due = self._averages, 0, False
        team = self.in_team
        if team is not None and not self.lost:
            try:
                team.require_finite()
                while not (team.is_complete and team.rounds > 1) and (
                    team.come(Comes.STEP, epoch=self._epoch, optimizer=number) is Follows.MEAN
                ):
                    if team.deal_follows:
                        self._take_deal(team)
            except SpeedoError as problem:
                self._lose(problem)
        if self.lost:
            self._gradients.forget(number)

    def after_step(self) -> int:
        """An optimizer has made a step; how many records of this worker have been exchanged for it."""
        self._gradients.made += 1
        self._gradients.watch_parameters()
        if self._team is not None:
            self._team.is_own = not self.idle
        counted, self._counted = self._counted, 0
        return counted

    def _lose(self, problem: SpeedoError) -> None:
        """The present turn is lost. Raises the problem if it is the script's."""
        if isinstance(problem, ConfigError):
            raise problem
        self.lost, self._counted = True, 0
        assert self._worker is not None
        if self._worker.command is not None:
            self._lose_turn(problem)

    def leave(self) -> bool:
        """Have the team's turn end with one more step, which is the others'; False if there is no result to end with.

        The master gives this worker no other turn before its pause is over.
        """
        team, self.leaves = self.in_team, True
        assert team is not None
        assert self._worker is not None
        try:
            follows = Follows.MEAN
            while follows not in (Follows.STEP, Follows.NOTHING):
                follows = team.come(Comes.LEAVE, epoch=self._epoch)
            if follows is Follows.STEP:
                self._step_of_the_others(team)
            elif self._worker.steps:
                self._end_turn()
        except SpeedoError as problem:
            self._lose(problem)
            return False
        finally:
            self.leaves = False
        return self._worker.command is None

    def _step_of_the_others(self, team: DrivenTeam) -> None:
        self.idle, self._is_pending = True, False
        try:
            self._gradients.step(team.steps_of)
            self._gradients.forget(team.steps_of)
        finally:
            self.idle = False

    @property
    def _epoch(self) -> int:
        """Of the script's loop."""
        return 0 if self._request is None else self._request.epoch

    @property
    def turn_ends(self) -> bool:
        """Whether the present turn ends with the present step, because a member of its team will pause."""
        return self.in_team is not None and self.in_team.ends

    @property
    def in_team(self) -> DrivenTeam | None:
        """The team, in a turn that is one of it."""
        return None if self._team is None or self._team.team is None else self._team

    # ------------------------------------------------------------ records

    def forget_records(self) -> None:
        """What was dealt is that of a former master; the next one gives it out again."""
        self._rows.clear()

    def lease(self, request: LeaseRequest) -> Lease | NoLease:
        """The next records of this worker; until there are some it takes part in the others' steps."""
        if request.skipped:  # the team's deals do not say it
            self._turns.lease(replace(request, count=0))
            request = replace(request, skipped=())
        self._request, self.trains_first = request, False
        while self._is_pending or not (self._rows and self._rows[0] is not None):
            if not self._has_turn():
                return NoLease.OVER
            team = self.in_team
            if team is None:
                self._is_pending = False
                self._rows = deque(row for row in self._rows if row is not None)
                if not self._rows:
                    self._share.of_round = 0
                    return self._turns.lease(request)
                continue
            if self._share.reads_ahead:
                self.trains_first = True
                return NoLease.WAIT
            try:
                found = self._come_for_none(team, request)
            except SpeedoError as problem:
                self._lose(problem)
                continue
            if found is not None:
                return found
        row = self._rows.popleft()
        assert row is not None
        self._share.of_round = len(row)
        return row

    def _come_for_none(self, team: DrivenTeam, request: LeaseRequest) -> NoLease | None:
        """Come without a gradient. Records that are dealt are in the rows then; an answer if there are none."""
        if self._is_due:  # the others' next step may be before its own
            self._average(team, self._share.given)
            return None
        is_idle = bool(self._rows)
        follows = team.come(Comes.IDLE if is_idle else Comes.ASK, epoch=request.epoch)
        if follows is Follows.STEP:
            self._step_of_the_others(team)
            return None
        if follows is Follows.SUM:
            return None
        self._is_pending = follows is Follows.MEAN
        if is_idle and self._rows[0] is None:
            self._rows.popleft()
        if self._is_pending:
            if team.deal_follows:
                self._take_deal(team)
            return None
        assert self._worker is not None
        if team.ends and self._worker.steps:
            self._end_turn()
        if is_idle or not team.deal_follows:
            return None
        rows, short = self._take_deal(team)
        if rows:
            self._times = 0
            return None
        if self._worker.steps:  # no record comes back once what they trained is merged
            self._end_turn()
            return None
        self._times += 1
        if short is NoLease.WAIT and self._times < MOST_TIMES:
            time.sleep(AGAIN_S)
            return None
        self._times = 0
        return NoLease.OVER

    def _wants_deal(self) -> bool:
        """Whether the processes of a loader would have to wait for records soon, and then to start again."""
        return self._share.has_loaders and not self._is_short and len(self._rows) < FEW_ROWS

    def _take_deal(self, team: DrivenTeam) -> tuple[list[Row], NoLease | None]:
        rows, short = team.dealt(self._deal)
        self._rows.extend(rows)
        self._is_short = short is not None
        return rows, short

    def _deal(self, epoch: int) -> Dealt:
        """What the leader asks of the master for all."""
        team, share, request = self.in_team, self._share, self._request
        assert team is not None
        assert team.team is not None
        assert team.next_deal is not None
        assert request is not None
        # Who joins has nothing to train as long as the others have rows: so they have few.
        most = MOST_DEALT if share.has_loaders else min(MOST_DEALT, team.rounds)
        asked = replace(request, count=share.source.batch, epoch=epoch)
        members = tuple(one[:2] for one in team.team.members)
        source = share.source
        # A batch of another size than the script's own may find no memory on a GPU.
        divides = not (team.several or source.drop_last or source.step)
        divides = divides and self._gradients.on_processor
        try:
            return self._turns.deal(
                DealRequest(team.next_deal, asked, members, most, source.drop_last, divides)
            )
        except (EOFError, OSError):  # the run is gone, as the end of the turn will show
            return Dealt((), NoLease.OVER)
