"""The books of a run: its workers, the turns that they owe the results of, and the results that are held.

Tickets, versions, iterations and samples are counted here, and the units that the strategy knows. It decides nothing:
`speedo.master.coordinator` says who trains, and carries on from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from speedo.master.members import Member, Turn
from speedo.master.plan import Plan, rounds_of
from speedo.master.reasons import RUN_OVER
from speedo.master.speed_division import SpeedDivision
from speedo.master.teams import Stretch, TeamUnit, spread_of
from speedo.messages import (
    NO_RESULTS,
    NO_TUNING,
    Action,
    Decision,
    Divided,
    Drop,
    Kind,
    OwnResults,
    Part,
    Refused,
    Team,
    Train,
    Trained,
    Tuning,
)
from speedo.sgd_modes.base import Strategy
from speedo.sgd_modes.hybrid import Hybrid
from speedo.sgd_modes.rules import MergeRule, TakeCenter
from speedo.sgd_modes.turn_length import AdaptiveLength, Length, TurnLength, as_turn_length
from speedo.system.records import record


@record
class Held:
    """The results of a unit, whose payload is received, and that wait for the strategy's decision."""

    parts: tuple[Part, ...]
    rule: MergeRule
    length: Length = 1  # of the turns of its phase
    void: str = ""  # why they are not merged


@record
class Receive:
    """Take the payload of this result out of the store, to be merged by this rule; handed back when that is done."""

    result: Trained
    rule: MergeRule


@dataclass
class TurnBook:
    """The turns of one run. `version` and `samples` start where a resumed run left them."""

    strategy: Strategy
    plan: Plan
    version: int = 0
    samples: int = 0
    first_ticket: int = 1
    received: int = 0
    members: dict[int, Member] = field(default_factory=dict)
    finished: bool = False
    division: SpeedDivision | None = None  # of the batch, where it follows the workers' speeds
    _divisions: int = 0  # how often it was divided anew
    _shares: dict[int, int] = field(default_factory=dict)  # of scripts, that do not know them
    _teams: dict[int, TeamUnit] = field(default_factory=dict)  # by unit
    _held: dict[int, Held] = field(default_factory=dict)  # by unit: the results that are held
    _parked: set[int] = field(default_factory=set)  # members without a turn, that wait for one
    _samples_in_flight: int = 0
    _samples_per_step: int = 0

    def __post_init__(self) -> None:
        self._next_ticket = self.first_ticket
        self._phased = self.strategy if isinstance(self.strategy, Hybrid) else None

    # ------------------------------------------------------------ questions

    @property
    def iteration(self) -> int:
        """The global iteration: samples merged over the solver's batch."""
        return self.samples // self.plan.batch

    @property
    def complete(self) -> bool:
        """Whether all of the plan's work is merged."""
        return self.samples >= self.plan.samples

    @property
    def place(self) -> tuple[int, int]:
        """The index of the present phase and the samples merged in it; zeros without phases."""
        return (0, 0) if self._phased is None else (self._phased.index, self._phased.merged)

    @property
    def _tuning(self) -> Tuning:
        """The solver values of the present phase."""
        return NO_TUNING if self._phased is None else self._phased.phase.tuning

    @property
    def _length(self) -> TurnLength | AdaptiveLength:
        """Local steps of turns."""
        return as_turn_length(self.strategy.local_steps)

    @property
    def _test_interval(self) -> int:
        own = None if self._phased is None else self._phased.phase.test_interval
        return self.plan.test_interval if own is None else own

    def outstanding(self, worker: int, ticket: int) -> bool:
        """Whether this worker still owes the result of this ticket."""
        member = self.members.get(worker)
        return member is not None and member.turn(ticket) is not None

    def _owed(self, event: Trained | Refused) -> tuple[Member, Turn] | str:
        """The worker and the turn that this result is of; why it is not one that is waited for, if it is not."""
        if self.finished:
            return RUN_OVER
        member = self.members.get(event.worker)
        if member is None:
            return "its worker is not in the run"
        if member.incarnation != event.incarnation:
            return f"it is of incarnation {event.incarnation}, the worker's is {member.incarnation}"
        turn = member.turn(event.ticket)
        return "its ticket is not outstanding" if turn is None else (member, turn)

    def _is_member(self, worker: int, incarnation: int) -> bool:
        member = self.members.get(worker)
        return member is not None and member.incarnation == incarnation

    def stretch_of(self, member: Member) -> Stretch | None:
        """What its team does now, with it or without it."""
        team = self._teams.get(member.unit)
        return None if team is None else team.stretch

    @property
    def broken_off(self) -> set[int]:
        """Workers that still have to answer for a stretch that others have ended."""
        return {worker for team in self._teams.values() for worker in team.awaited}

    def _may_wait(self, decision: Decision) -> bool:
        """Whether who trains need not be told before the next result is decided, and can begin from any version."""
        in_team = any(unit in self._teams for unit in decision.train)
        return decision.may_wait and not in_team and self.strategy.rule.payload is not Kind.WEIGHTS

    def _received_stretch(self, result: Trained | Refused) -> Stretch | None:
        """The stretch whose members have all answered, if this is its leader's result, which stands for all."""
        member = self.members.get(result.worker)
        stretch = None if member is None else self.stretch_of(member)
        if stretch is None or stretch.result is None or stretch.owing:
            return None
        return stretch if stretch.result.ticket == result.ticket else None

    # ------------------------------------------------------------ turns

    def _unit_for(self, worker: int, meets: str, depth: int) -> int:
        """Where those of all hosts cannot work together, those of one host may."""
        if not (self.plan.teams and meets and depth == 1):
            return worker
        apart = any(team.spans and team.is_given_up for team in self._teams.values())
        place = "" if self.plan.over_hosts and not apart else meets
        for unit, team in self._teams.items():
            if team.meets == place:
                return worker if team.is_given_up else unit
        unit = -1 - len(self._teams)
        self._teams[unit] = TeamUnit(place)
        return unit

    def _end_turn(self, event: Trained, member: Member, turn: Turn) -> Part:
        """Its result has come: the record of it.

        Nobody is credited with more samples than were issued; with fewer who may end a turn earlier.
        """
        member.end(turn)
        whole_steps, rest = divmod(event.samples, turn.per_step)
        may_end_early = turn.may_end_early or event.broken
        ends_early = may_end_early and not rest and 0 < event.samples < turn.samples
        if self.plan.own_counts:
            # In a team one may have none, where others have some.
            least = 0 if turn.stretch is not None else 1
            ends_early = least <= event.samples < turn.samples
            whole_steps += rest > 0
        if self.division is not None and not (turn.stretch and turn.stretch.void):
            self.division.measured(event.worker, whole_steps, event.timings)
        self._samples_in_flight -= turn.samples
        staleness = self.received - turn.received_before
        self.received += 1
        return Part(
            event.worker,
            event.incarnation,
            event.ticket,
            event.samples if ends_early else turn.samples,
            staleness,
            event.loss,
            event.losses,
            steps=whole_steps if ends_early else turn.samples // turn.per_step,
            records=event.records,
        )

    def _workers_of(self, unit: int) -> tuple[int, ...]:
        """The leader first: one whose payload passes no link, if there is one."""
        if unit not in self._teams:
            return (unit,)
        members = self._teams[unit].members
        return tuple(sorted(members, key=lambda worker: (not self.members[worker].near, worker)))

    def _units_to_join(self) -> tuple[int, ...]:
        """Parked workers by themselves, and the teams that form of them.

        A team that trains takes them in for its next turn; one whose last stretch was void forms once all its members
        have answered.
        """
        units = []
        here = self.members
        all_rest = all(one.rests for one in here.values())
        for worker in sorted(w for w in self._parked if not (here[w].pauses or here[w].leaves)):
            unit = self.members[worker].unit
            team = self._teams.get(unit)
            if team is not None and team.owing:
                continue
            if team is not None and team.is_given_up:
                member = self.members[worker]
                unit = member.unit = self._unit_for(worker, member.meets, member.depth)
                team = self._teams.get(unit)
            if here[worker].rests and not all_rest:
                continue
            self._parked.discard(worker)
            if team is None or not team.joined:
                units.append(unit)
            if team is not None:
                team.joined = True
                team.add(worker)
        return tuple(units)

    def _issue_to_team(self, unit: int, steps: int, left: int, actions: list[Action]) -> int:
        """One turn for all members; the samples of it."""
        team, workers = self._teams[unit], self._workers_of(unit)
        those = [(worker, self.members[worker]) for worker in workers]
        spread = spread_of([it.meets for _, it in those])
        rule, rounds = self.strategy.rule, 1
        per_step = sum(self.members[worker].samples_per_step for worker in workers)
        # Also the last one that is left; a script alone, or a run of one worker, makes turns.
        as_team = len(workers) > 1 or not (self.plan.workers == 1 or self.plan.own_counts)
        if as_team and rule.adds_mean and self._is_only(team):
            rule = team.alone = team.alone or TakeCenter(rule)
            change = self._length.next_change(self.iteration)
            work = steps * per_step
            times = team.times(len(spread), far=not self.members[workers[0]].near)
            rounds = rounds_of(self.plan, self.samples, left, work, *times, change)
        issued = []
        stretch = Stretch(unit, rule, workers, rounds)
        for worker in workers:
            turn = self._begin_turn(self.members[worker], steps * rounds, rule)
            turn.stretch = stretch
            issued.append((worker, turn))
            if not self.plan.own_counts:
                who = worker, self.members[worker].incarnation, turn.ticket
                stretch.steps.append(Part(*who, turn.per_step, 0, 0.0, steps=1))
        team.stretch, team.formed = stretch, team.formed or issued[0][1].ticket
        told = None
        if len(workers) > 1 or rule is team.alone:
            members = tuple((one, it.incarnation, it.samples_per_step) for one, it in those)
            team.tries(members, spans=bool(spread))
            told = Team(team.formed, members, rounds, self._rate(rule), spread=spread)
            told = replace(told, agree_every=team.agree_every, seconds=rounds * team.round_s)
        for worker, turn in issued:
            command = self._command(worker, self.members[worker], turn, steps, told)
            if rounds > 1:
                command = replace(command, stride=per_step)
            actions.append(command)
        return sum(turn.samples for _, turn in issued)

    def _is_only(self, team: TeamUnit) -> bool:
        """Whether nobody else trains in this run."""
        return not any(
            self.members[worker].unit not in self._teams for worker in self.members
        ) and all(other is team or not other.joined for other in self._teams.values())

    def _divide_anew(self, units: list[int]) -> list[Divided]:
        """Give the workers other shares of the batch, if their speeds ask for it and nobody is in a turn."""
        if (
            self.division is None
            or self.complete
            or any(
                one.turns or one.depth > 1 or one.unit not in units for one in self.members.values()
            )
        ):
            return []
        new = self.division.due(
            {who: (one.incarnation, one.samples_per_step) for who, one in self.members.items()},
            may_rest=not self.plan.own_counts
            and len(self._teams) == len({one.unit for one in self.members.values()}) == 1,
        )
        if new is None:
            return []
        for team in self._teams.values():
            team.formed = 0  # the memory that its members share may have another size
        for worker in new.records.keys() & self.members.keys():
            member = self.members[worker]
            rested, member.samples_per_step = member.rests, new.records[worker] * self.division.unit
            if member.rests:
                self._teams[member.unit].members.discard(worker)
                self._parked.add(worker)
            elif rested and member.unit in self._teams and not member.leaves:
                self._teams[member.unit].members.add(worker)
                self._parked.discard(worker)
        self._divisions += 1
        if self.plan.own_counts:
            self._shares = dict(new.records)
        shares = tuple(new.records), tuple(new.records.values())
        return [Divided(*shares, self.samples, new.reason, self.division.unit)]

    def _begin_turn(self, member: Member, steps: int, rule: MergeRule) -> Turn:
        per_step = member.samples_per_step * self._tuning.batches
        turn = Turn(
            self._next_ticket,
            steps * per_step,
            self.received,
            rule,
            per_step=per_step,
            may_end_early=self._length.norm > 0,
        )
        self._next_ticket += 1
        self._samples_in_flight += turn.samples
        member.turns.append(turn)
        member.latest = turn.ticket
        return turn

    def _discard(self, unit: int, why: str, actions: list[Action]) -> None:
        for part in self._held.pop(unit).parts:
            actions.append(drop_of(part, "discarded", why, part.staleness, part.loss))

    def _command(
        self, worker: int, member: Member, turn: Turn, steps: int, team: Team | None = None
    ) -> Train:
        """The turn that was just begun, for its worker."""
        rule, tuning = self.strategy.rule, self._tuning
        moving_rate, merged = member.catch_up(rule, self.version)
        if isinstance(turn.rule, TakeCenter) and (made := member.made(turn.rule, self.version)):
            merged = made.ticket
        carry_over, member.merged = member.merged is not None, None
        samples, own = self.samples, OwnResults(merged) if merged else NO_RESULTS
        if len(member.turns) > 1:
            *former, _ = member.turns
            samples += sum(one.samples for one in former)
            carry_over, own = True, OwnResults(merged, former[-1].ticket, self._rate(rule))
        return Train(
            worker,
            member.incarnation,
            turn.ticket,
            self.version,
            samples,
            steps,
            self._samples_per_step * tuning.batches,
            turn.rule.payload,
            moving_rate,
            carry_over,
            own,
            team,
            tuning,
            self._length.norm if steps > 1 else 0.0,
            self.plan.batch,
            division=self._divisions,
        )

    def _rate(self, rule: MergeRule, staleness: int = 0) -> float:
        return rule.rate(max(len(self.members), 1), staleness)


def drop_of(
    result: Trained | Refused | Part,
    decision: str,
    reason: str,
    staleness: int = 0,
    loss: float = float("nan"),
) -> Drop:
    """The record of a result that is not merged."""
    return Drop(result.worker, result.incarnation, result.ticket, decision, reason, staleness, loss)
