"""The state machine of a run: an event comes in, a list of actions goes out, in the order to carry out.

Theory of operation. The strategy (`speedo.sgd_modes`) decides who is merged and who trains; the coordinator
keeps the books (`speedo.master.turn_book`) that make its decisions safe:

- *Tickets.* Each turn has a unique number. A result is accepted only while its worker has the same incarnation and
  this ticket is outstanding; accepting it ends the ticket. So a result merges at most once, and late, repeated and
  foreign results are refused. The ticket is checked once: `handle(Trained)` answers with `Receive`; the next event is
  the same `Receive`, once its payload can be merged, or `Refused`.
- *Versions.* Only a merge makes a version, the next one.
- *Iterations* count samples merged, divided by the solver's batch. No more turns are issued than the remaining work
  needs. A worker without work, or while too few workers live, is parked: for the strategy it has left, and joins
  when there is work again. So a strategy needs no rule for the end.
- *Staleness* of a result is the number of results received between its ticket's issue and itself.
- *Results that wait together* are decided one after another. A worker whose next turn does not depend on the other
  results gets its command after the last of them, so that all begin from the newest version. Elastic workers need the
  version that their own result made, and get their command at once.
- *Teams.* Workers that can meet are one unit for the strategy, with a number below 0. All get the same turn, a stretch.
  It counts as one result, with the leader's payload, once all members have answered; it is void if one leaves or is
  refused. With all workers of the run it has several rounds, up to the next test, snapshot or end, and its payload is
  the center that it made; if a member leaves, the rounds before count that the others say they have made.
- *Another master's workers* (`speedo.master.returning`) are taken in together, once they are back.
- *Too few workers* (`--min-workers`, above 1): no turn is issued and nothing is merged. What is held or under way when
  they leave is discarded, also if its result comes after others are back.
- *Leaving* (`speedo.master.leaving`). Who is to leave gets no other turn; its present ones may end early, as their
  results say. A stretch ends early for all its members, after the same round.
- *Stopping.* `speedo.master.stopping` gets each test and the elapsed time, and may end the run as complete.
- *Bad results.* For the strategy a worker whose payload is refused has left and joined again, so no worker waits for
  the lost result. After `STRIKES` such results in a row the worker is set aside.

No clock, no I/O, no arrays. Actions are applied to the books before they are returned, so the driver must carry
them out in order, all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from speedo.master.members import Member, Merged, Turn
from speedo.master.plan import crossed
from speedo.master.reasons import ALL_DONE, AT_MAX_ITER, RUN_OVER, team_given_up, waits_for_workers
from speedo.master.returning import ReturningBook
from speedo.master.stopping import Stopping
from speedo.master.teams import Stretch, TeamUnit
from speedo.master.turn_book import Held, Receive, drop_of
from speedo.messages import (
    Action,
    Decision,
    Elapsed,
    Evaluate,
    Event,
    Finish,
    Joined,
    KeepBest,
    Left,
    Merge,
    Pause,
    Refused,
    Result,
    SetAside,
    Snapshot,
    StopAsked,
    TeamGivenUp,
    Tested,
    Trained,
)
from speedo.sgd_modes.turn_length import as_turn_length

STRIKES = 3  # refused results in a row after which a worker is set aside


@dataclass
class Coordinator(ReturningBook):
    """One run's books. `version` and `samples` start where a resumed run left them."""

    stopping: Stopping = field(default_factory=Stopping)
    _more: bool = False
    _aside: dict[int, str] = field(default_factory=dict)  # who was set aside, and why
    _tests: dict[int, tuple[int, int]] = field(default_factory=dict)  # iteration, samples
    _to_train: list[int] = field(default_factory=list)  # after the last of the results that wait
    _due: Receive | None = None  # of a stretch of which the last to answer has left
    _before: list[Action] = field(default_factory=list)  # to be carried out behind it

    # ------------------------------------------------------------ events

    def handle(self, event: Event | Receive, *, more: bool = False) -> Receive | list[Action]:
        """Take one event; returns what follows from it. A finished run answers only with refusals.

        `more`: the next event waits already, and is a result of another worker than those before it that waited, too.
        """
        actions, self._before, self._more = self._before, list[Action](), more
        if not isinstance(event, (Trained, Receive)):
            self._let_train(actions)
        match event:
            case Trained():
                if (receive := self._on_trained(event, actions)) is not None:
                    return receive
            case Receive():
                self._on_received(event, actions)
            case Joined() if not self.finished:
                self._on_joined(event, actions)
            case Left():
                self._on_left(event, actions)
            case Pause() if self._is_member(event.worker, event.incarnation):
                self._on_pause(event, actions)
            case Refused():
                self._on_refused(event, actions)
            case StopAsked() if not self.finished:
                self._finish(actions, complete=False, reason=event.reason)
            case Tested() if not event.problem:
                self._on_tested(event, actions)
            case Elapsed() if not self.finished and (why := self.stopping.trained(event.seconds)):
                self._finish(actions, complete=True, reason=why)
        if (due := self._due) is not None:
            self._due, self._before = None, actions
            return due
        if not more:
            self._let_train(actions)
        self._settle(actions)
        return actions

    def go_on(self) -> list[Action]:
        """The workers of a former master that are not back are not waited for any more."""
        self.awaited.clear()
        self._settle(actions := list[Action]())
        return actions

    def _settle(self, actions: list[Action]) -> None:
        self._say_who_is_missing(actions)
        if not self.finished and not self.awaited:
            self._wake(actions)
            if self.complete and not self.finished:
                self._finish(actions, complete=True, reason=f"{AT_MAX_ITER} {self.plan.max_iter}")

    def _on_joined(self, event: Joined, actions: list[Action]) -> None:
        worker = event.worker
        if (was := self.members.get(worker)) is not None:
            self._on_left(Left(worker, was.incarnation, "a newer one took its place"), actions)
        self._left.pop(worker, None)
        self._aside.pop(worker, None)
        unit = self._unit_for(worker, event.meets, event.depth)
        size = self._shares.get(worker, event.samples_per_step)
        member = Member(event.incarnation, size, event.depth, unit, event.meets, event.near)
        self.members[worker], self._samples_per_step = member, self._samples_per_step + size
        self._parked.add(worker)
        self._is_back(event)

    def _on_left(self, event: Left, actions: list[Action]) -> None:
        if not self._is_member(event.worker, event.incarnation):
            return self.awaited.discard(event.worker)
        stretch = self.stretch_of(self.members[event.worker])
        if event.done and stretch is not None and stretch.has_answer_of(event.worker):
            return stretch.left.append(event)
        member = self.members.pop(event.worker)
        self._is_gone(event.worker)
        self._left[event.worker] = event.done
        self._samples_per_step -= member.samples_per_step
        if self._makes_no_step:
            self._let_nothing_count(actions)
        self._withdraw(event.worker, member, event.cause, actions)
        self._parked.discard(event.worker)
        all_left = not self.members and len(self._left) >= self.plan.workers
        none_returns = all(done or who in self._aside for who, done in self._left.items())
        if all_left and none_returns and any(self._left.values()) and not self.finished:
            aside = [f"worker {who} was set aside: {why}" for who, why in self._aside.items()]
            reason = "; ".join([ALL_DONE, *aside])
            self._finish(actions, complete=self.samples > 0 and not aside, reason=reason)

    def _on_pause(self, event: Pause, actions: list[Action]) -> None:
        member = self.members[event.worker]
        before, member.pauses = member.pauses, not event.over
        if member.pauses and not before:
            self._withdraw(event.worker, member, "it pauses", actions)
        stretch = self.stretch_of(member)
        if stretch is not None and stretch.has_answer_of(event.worker):
            # Its result is in the center once the others have answered.
            stretch.tests += event.tests
        elif event.tests and not self.finished:
            self._evaluate(actions)

    def _withdraw(self, worker: int, member: Member, cause: str, actions: list[Action]) -> None:
        """To the strategy it has left. What it owes is not waited for."""
        self._samples_in_flight -= member.end_all()
        is_known = worker not in self._parked
        self._parked.add(worker)
        team = self._teams.get(member.unit)
        if team is not None:
            self._leave_team(worker, team, cause, actions)
        elif is_known and not self.finished:
            self._carry_out(self.strategy.on_leave(worker), actions)

    def _leave_team(self, worker: int, team: TeamUnit, cause: str, actions: list[Action]) -> None:
        team.remove(worker)
        stretch = team.stretch
        if stretch is not None and worker in stretch.workers:
            if stretch.lose(worker, f"its team lost worker {worker}: {cause}"):
                self._due = self._result_of(stretch, actions)
        elif team.joined and not team.members:
            self._dissolve(team, actions)

    def _result_of(self, stretch: Stretch, actions: list[Action]) -> Receive | None:
        result = stretch.outcome
        if result is None:
            self._void(stretch, stretch.broken, actions)
        return None if result is None else Receive(result, stretch.rule)

    def _on_trained(self, event: Trained, actions: list[Action]) -> Receive | None:
        owed = self._owed(event)
        if isinstance(owed, str):
            actions.append(drop_of(event, "late", owed, loss=event.loss))
            return None
        member, turn = owed
        if turn.stretch is None:
            return Receive(event, turn.rule)
        return self._on_trained_in_team(event, member, turn, turn.stretch, actions)

    def _on_trained_in_team(
        self, event: Trained, member: Member, turn: Turn, stretch: Stretch, actions: list[Action]
    ) -> Receive | None:
        """Its payload is received once all members have answered."""
        part = self._end_turn(event, member, turn)
        team = self._teams[stretch.unit]
        if event.pauses or member.leaves:
            member.pauses = member.pauses or event.pauses
            team.remove(event.worker)
            self._parked.add(event.worker)
        if stretch.void:
            team.owing.discard(event.worker)
            actions.append(drop_of(part, "discarded", stretch.void, part.staleness, part.loss))
            self._parked.add(event.worker)
            return None
        return self._result_of(stretch, actions) if stretch.take(part, event) else None

    def _on_received(self, event: Receive, actions: list[Action]) -> None:
        result, rule, void = event.result, event.rule, ""
        stretch = self._received_stretch(result)
        if stretch is not None:
            parts, unit = stretch.merged, stretch.unit
            self._teams[unit].complete(stretch)
        else:
            owed = self._owed(result)
            assert not isinstance(owed, str), owed
            member, turn = owed
            parts, unit = (self._end_turn(result, member, turn),), member.unit
            if void := turn.void:  # one given ahead begins with it
                self._samples_in_flight -= member.end_all()
        for part in parts:
            if self._is_member(part.worker, part.incarnation):
                self.members[part.worker].strikes = 0
        self._held[unit] = Held(parts, rule, self.strategy.local_steps, void)
        samples = 0 if void else sum(part.samples for part in parts)
        staleness = max(part.staleness for part in parts)
        self._carry_out(self.strategy.on_result(Result(unit, samples, staleness)), actions)
        if stretch is not None:
            self._let_go(stretch, actions)

    def _on_refused(self, event: Refused, actions: list[Action]) -> None:
        stretch = self._received_stretch(event)
        if stretch is not None:
            member = self.members[event.worker]
            actions.append(drop_of(event, "refused", event.reason))
            stretch.forget(event.worker)
            self._void(stretch, f"the sum of its team was refused: {event.reason}", actions)
        else:
            owed = self._owed(event)
            if isinstance(owed, str):
                return actions.append(drop_of(event, "late", owed))
            actions.append(drop_of(event, "refused", event.reason))
            member, turn = owed
            # One given ahead begins with what is refused.
            self._samples_in_flight -= member.end_all()
            self._refuse_in_team(event, turn, actions)
        member.strikes += event.blame
        if member.strikes < STRIKES:
            return self._park(event.worker, actions)
        why = f"{STRIKES} results in a row were refused, the last: {event.reason}"
        actions.append(SetAside(event.worker, event.incarnation, why))
        self._aside[event.worker] = why
        self._on_left(Left(event.worker, event.incarnation, why), actions)
        if not self.members and not self.complete and not self.finished:
            self._finish(actions, complete=False, reason=f"every worker was set aside; {why}")

    def _refuse_in_team(self, event: Refused, turn: Turn, actions: list[Action]) -> None:
        stretch = turn.stretch
        if stretch is None:
            return
        self._teams[stretch.unit].owing.discard(event.worker)
        stretch.owing.discard(event.worker)
        if not stretch.void:
            self._void(stretch, f"worker {event.worker} of its team: {event.reason}", actions)

    def _on_tested(self, event: Tested, actions: list[Action]) -> None:
        """Also the test of the last version, after the end, may be the best."""
        iteration, samples = self._tests.pop(event.version, (self.iteration, self.samples))
        verdict = self.stopping.tested(event.metrics, iteration)
        better = verdict.better
        if better is not None and self.stopping.rules.keep_best:
            value = event.metrics[better.output]
            actions.append(KeepBest(event.version, iteration, better.output, value, better.higher))
        if self.finished:
            return
        if verdict.reason:
            self._finish(actions, complete=True, reason=verdict.reason)
        elif self._phased is not None:
            self._carry_out(self._phased.on_test(event.metrics, self.samples - samples), actions)

    # ------------------------------------------------------------ teams

    def _void(self, stretch: Stretch, why: str, actions: list[Action]) -> None:
        """None of its results counts. Its team forms again once all members have answered."""
        stretch.void = why
        team = self._teams[stretch.unit]
        for part in stretch.parts:
            actions.append(drop_of(part, "discarded", why, part.staleness, part.loss))
        team.owing = set(stretch.owing)
        team.broke()
        if team.is_given_up and not self.finished:
            who = stretch.workers
            actions.append(TeamGivenUp(who, team_given_up(who, why, spans=team.spans)))
        self._dissolve(team, actions)
        self._let_go(stretch, actions)

    def _let_nothing_count(self, actions: list[Action]) -> None:
        """Fewer workers are left than a step needs: neither what is held nor what is under way is merged."""
        why = waits_for_workers(len(self.members), self._needed)
        self._held = {unit: replace(one, void=why) for unit, one in self._held.items()}
        if self._phased is not None:
            self._phased.pending.clear()
        for turn in [turn for member in self.members.values() for turn in member.turns]:
            turn.void = why
            if turn.stretch is not None and not turn.stretch.void:
                self._void(turn.stretch, why, actions)

    def _let_go(self, stretch: Stretch, actions: list[Action]) -> None:
        """Members that have paused since they answered test what it came to; who had nothing more to train is gone."""
        for _ in range(0 if self.finished else stretch.tests):
            self._evaluate(actions)
        for event in stretch.left:
            self._on_left(event, actions)

    def _dissolve(self, team: TeamUnit, actions: list[Action]) -> None:
        """To the strategy it has left; members without a turn wait."""
        team.formed, here = 0, self.members
        self._parked |= {one for one in team.members if one in here and not here[one].turns}
        team.members.clear()
        if team.joined and not self.finished:
            team.joined = False
            units = [unit for unit, one in self._teams.items() if one is team]
            self._carry_out(self.strategy.on_leave(units[0]), actions)

    # ------------------------------------------------------------ decisions

    def _carry_out(self, decision: Decision, actions: list[Action]) -> None:
        for worker in decision.discard:
            self._discard(worker, decision.why, actions)
        void = next((why for unit in decision.merge if (why := self._held[unit].void)), "")
        for worker in decision.merge if void else ():
            self._discard(worker, void, actions)
        if decision.merge and not void:
            self._merge(decision.merge, actions)
        if decision.train:
            self._to_train += decision.train
            if not (self._more and self._may_wait(decision)):
                self._let_train(actions)

    def _let_train(self, actions: list[Action]) -> None:
        """Issue the turns that were decided."""
        more, self._more = self._more, False
        units, self._to_train = self._to_train, []
        if units and not self.finished:
            self._train(units, actions)
        self._more = more

    def _merge(self, units: tuple[int, ...], actions: list[Action]) -> None:
        held = [self._held.pop(unit) for unit in units]
        parts, rule = tuple(part for one in held for part in one.parts), held[0].rule
        before = self.iteration
        self.version += 1
        self.samples += sum(part.samples for part in parts)
        now = self.iteration
        rate = self._rate(rule, max(part.staleness for part in parts))
        actions.append(Merge(self.version, now, self.samples, rate, parts))
        results = [(part.loss, part.samples) for part in parts]
        as_turn_length(held[0].length).merged(results, before, now)
        for part in parts:
            if self._is_member(part.worker, part.incarnation):
                self.members[part.worker].merged = Merged(self.version, rule, rate, part.ticket)
        if not self.complete:  # the end has its own test and model
            if crossed(before, now, self._test_interval):
                self._evaluate(actions)
            if crossed(before, now, self.plan.snapshot):
                actions.append(Snapshot(self.version, now))

    def _evaluate(self, actions: list[Action]) -> None:
        self._tests[self.version] = (self.iteration, self.samples)
        actions.append(Evaluate(self.version, self.iteration))

    def _train(self, units: list[int], actions: list[Action]) -> None:
        """Issue turns to each, all of one length, as far as there is work; park those that have none then."""
        actions += self._divide_anew(units)
        left = self.plan.samples - self.samples - self._samples_in_flight
        members = [(one, self.members[one]) for unit in units for one in self._workers_of(unit)]
        per_step = sum([member.samples_per_step for _, member in members]) * self._tuning.batches
        steps = max(1, min(self._length.at(self.iteration), -(-left // max(1, per_step))))
        enough = len(self.members) >= self._needed
        for unit in units:
            if unit in self._teams and left > 0 and enough and self._workers_of(unit):
                left -= self._issue_to_team(unit, steps, left, actions)
        alone = [(worker, member) for worker, member in members if member.unit == worker]
        for depth in range(max([member.depth for _, member in alone], default=0)):
            for worker, member in alone:
                if left > 0 and enough and len(member.turns) == depth and member.has_room:
                    most = -(-left // (member.samples_per_step * self._tuning.batches))
                    own = min(steps, most) if self.plan.once else steps
                    turn = self._begin_turn(member, own, self.strategy.rule)
                    actions.append(self._command(worker, member, turn, own))
                    left -= turn.samples
        for unit in units:
            team = self._teams.get(unit)
            if team is None and not self.members[unit].turns:
                self._park(unit, actions)
            elif team is not None and team.stretch is None:
                self._dissolve(team, actions)

    def _park(self, worker: int, actions: list[Action]) -> None:
        self._parked.add(worker)
        if self.members[worker].unit == worker:
            self._carry_out(self.strategy.on_leave(worker), actions)

    def _wake(self, actions: list[Action]) -> None:
        """Let parked workers join, if there is work for them and enough of them live."""
        more = self.plan.samples - self.samples - self._samples_in_flight > 0
        if self._brought and not self.complete:
            self.started = True
            together = more and not self.short_of_workers
            self._carry_out(self._take_up(with_others=together), actions)
        if not self._parked or self.short_of_workers:
            return
        if not self.started:
            self.started = True
            if self.plan.test_initialization and self.samples == 0:
                self._evaluate(actions)
        left = self.plan.samples - self.samples - self._samples_in_flight
        if left > 0 and (units := self._units_to_join()):
            self._carry_out(self.strategy.on_join(units), actions)

    def end(self, reason: str) -> list[Action]:
        """The work is done, also if workers are still there."""
        self._finish(actions := list[Action](), complete=True, reason=reason)
        return actions

    def _finish(self, actions: list[Action], *, complete: bool, reason: str) -> None:
        self.finished = True
        self.awaited.clear()
        for team in self._teams.values():
            if team.stretch is not None:
                self._void(team.stretch, RUN_OVER, actions)
        for unit in sorted(self._held):
            self._discard(unit, RUN_OVER, actions)
        actions.append(Finish(complete, reason))
