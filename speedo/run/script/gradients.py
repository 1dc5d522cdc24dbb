"""A script's turns in which the workers average their gradients before each step of the optimizer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from speedo.errors import ConfigError, ScriptMistake, SpeedoError
from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.lease import DealRequest, Dealt, Lease, LeaseRequest, NoLease
from speedo.exchange.team_meeting import TeamMeeting
from speedo.messages import Team, Train
from speedo.run.script.turns import TurnSource
from speedo.run.script_link import Start
from speedo.worker.driven_team import Comes, DrivenTeam, Row
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
        self._team: DrivenTeam | None = None
        self._rows = deque[Row]()
        self.idle = False  # the present step is one of the others
        self.lost = False  # the present step is none, because its turn is lost
        # Records are asked for again once those that were read are trained.
        self.trains_first = False
        self.leaves = False  # this worker will pause, and has the present turn end
        self._times = 0

    def open(
        self, worker: ScriptWorker, folder: Path, reach: Callable[[Team], HostExchange]
    ) -> None:
        """Meet those of the host in this folder of it, and `reach` those of the team's other hosts."""
        gathering = TeamMeeting(folder, worker.worker, worker.incarnation)
        self._worker = worker
        membership = Membership(worker.worker, gathering, reach)
        self._team = DrivenTeam(worker, membership, self._gradients)

    def close(self) -> None:
        """Meet nobody any more. May be called twice."""
        team, self._team = self._team, None
        if team is not None:
            team.close()

    def begin(self, command: Train) -> None:
        """Begin a turn, of the team or alone."""
        assert self._worker is not None
        assert self._team is not None
        if command.team is None:
            self._worker.begin(command)
        else:
            self._team.begin(command)

    def part(self, why: str) -> None:
        """The turn is lost."""
        assert self._team is not None
        missed = self._team.next_deal
        self._team.part(why)
        if missed is not None:
            self._turns.not_dealt(missed)
        self._gradients.forget()

    # ------------------------------------------------------------ steps

    def before_step(self, samples: int, *, closure: bool) -> None:
        """Put the mean of all workers' gradients in the place of this worker's, which are of this many records."""
        self.lost = False
        if self.idle:
            return
        if closure:
            raise ScriptMistake(
                "optimizer.step(closure) computes gradients while it steps, so they cannot be exchanged before: call "
                'optimizer.step() after loss.backward(), or use speedo.join(..., exchange="deltas")'
            )
        if not self._has_turn() or self._in_team is None:
            return
        try:
            self._in_team.come(Comes.STEP, samples, self._epoch, wants_deal=self._wants_deal())
            if self._in_team.deal_follows:
                self._take_deal(self._in_team)
        except SpeedoError as problem:
            if isinstance(problem, ConfigError):
                raise
            self.lost = True
            self._lose_turn(problem)

    def after_step(self) -> None:
        """The optimizer has made a step."""
        self._gradients.made += 1

    def leave(self) -> bool:
        """Have the team's turn end with one more step, which is the others'; False if there is no result to end with.

        The master gives this worker no other turn before its pause is over.
        """
        team, self.leaves = self._in_team, True
        assert team is not None
        assert self._worker is not None
        try:
            with self._gradients.set_aside():
                if team.come(Comes.LEAVE, epoch=self._epoch):
                    self._step_of_the_others()
                elif self._worker.steps:
                    self._end_turn()
        except SpeedoError as problem:
            if isinstance(problem, ConfigError):
                raise
            if self._worker.command is not None:
                self._lose_turn(problem)
            return False
        finally:
            self.leaves = False
        return self._worker.command is None

    def _step_of_the_others(self) -> None:
        self.idle = True
        try:
            self._gradients.step()
        finally:
            self.idle = False

    @property
    def _epoch(self) -> int:
        """Of the script's loop."""
        return 0 if self._request is None else self._request.epoch

    @property
    def in_team(self) -> bool:
        """Whether the present turn is one of a team."""
        return self._in_team is not None

    @property
    def turn_ends(self) -> bool:
        """Whether the present turn ends with the present step, because a member of its team will pause."""
        return self._in_team is not None and self._in_team.ends

    @property
    def _in_team(self) -> DrivenTeam | None:
        """The team, in a turn that is one of it."""
        return None if self._team is None or self._team.team is None else self._team

    # ------------------------------------------------------------ records

    def lease(self, request: LeaseRequest) -> Lease | NoLease:
        """The next records of this worker; until there are some it takes part in the others' steps."""
        self._request, self.trains_first = request, False
        while not (self._rows and self._rows[0] is not None):
            if not self._has_turn():
                return NoLease.OVER
            team = self._in_team
            if team is None or request.skipped:
                self._rows = deque(row for row in self._rows if row is not None)
                if not self._rows:
                    return self._turns.lease(request)
                continue
            if self._share.reads_ahead:
                self.trains_first = True
                return NoLease.WAIT
            try:
                found = self._come_for_none(team, request)
            except ConfigError:
                raise
            except SpeedoError as problem:
                self._lose_turn(problem)
                continue
            if found is not None:
                return found
        row = self._rows.popleft()
        assert row is not None
        return row

    def _come_for_none(self, team: DrivenTeam, request: LeaseRequest) -> NoLease | None:
        """Come without a gradient. Records that are dealt are in the rows then; an answer if there are none."""
        is_idle = bool(self._rows)
        with self._gradients.set_aside():
            if team.come(Comes.IDLE if is_idle else Comes.ASK, epoch=request.epoch):
                if team.deal_follows:
                    self._take_deal(team)
                self._step_of_the_others()
                if is_idle:
                    self._rows.popleft()
                return None
        if is_idle:
            self._rows.popleft()
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
        team, share, request = self._in_team, self._share, self._request
        assert team is not None
        assert team.next_deal is not None
        assert request is not None
        # Who joins has nothing to train as long as the others have rows: so they have few.
        most = MOST_DEALT if share.has_loaders else min(MOST_DEALT, team.rounds)
        asked = replace(request, count=share.batch, epoch=epoch)
        members = tuple(one[:2] for one in team.members)
        try:
            return self._turns.deal(
                DealRequest(team.next_deal, asked, members, most, share.drop_last)
            )
        except (EOFError, OSError):  # the run is gone, as the end of the turn will show
            return Dealt((), NoLease.OVER)
