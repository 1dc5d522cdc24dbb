"""The state machine of a run: an event comes in, a list of actions goes out, in the order to carry out.

Theory of operation. The strategy (`speedo.sgd_modes`) decides who is merged and who trains; the coordinator
keeps the books that make its decisions safe:

- *Tickets.* Each turn has a number, given once. A result is taken only while its worker is there in the same
  incarnation and this very ticket is outstanding; taking it ends the ticket. So a result merges at most once,
  and late, repeated and foreign ones are told apart and refused. The ticket is looked at once: `handle(Trained)`
  answers with `Receive`, and what becomes of that, `Received` or `Refused`, is the next event.
- *Versions.* Each merge makes the next version of the center; nothing else does.
- *Iterations* count samples merged, divided by the solver's batch. No more turns are issued than the work that
  is left needs; a worker without work, or while too few workers live, is parked. To the strategy a parked
  worker has left, and joins when there is work again: it needs no rule of its own for the end.
- *Staleness* of a result is the number of results received between its ticket's issue and itself.
- *Bad results.* To the strategy a worker whose payload is refused has left and joined again, so nobody waits
  for the lost result. After `STRIKES` of them in a row the worker is set aside.

No clock, no I/O, no arrays. Actions are applied to the books before they are returned, so the driver must carry
them out in order, all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from speedo.messages import (
    Action,
    Decision,
    Drop,
    Evaluate,
    Event,
    Finish,
    Joined,
    Left,
    Merge,
    OwnResults,
    Part,
    Refused,
    Result,
    SetAside,
    Snapshot,
    StopAsked,
    Train,
    Trained,
)
from speedo.sgd_modes.base import Strategy
from speedo.sgd_modes.rules import MergeRule
from speedo.vectors.vector import Kind

STRIKES = 3  # refused results in a row after which a worker is set aside


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of a run, in the solver's own terms: iterations of `batch` samples."""

    batch: int
    max_iter: int
    workers: int
    min_workers: int = 1
    test_interval: int = 0
    test_initialization: bool = False
    snapshot: int = 0

    @property
    def samples(self) -> int:
        return self.batch * self.max_iter


@dataclass(slots=True)
class Turn:
    """A turn that its worker still owes the result of."""

    ticket: int
    samples: int
    received_before: int
    rule: MergeRule


@dataclass(frozen=True, slots=True)
class Merged:
    """The merge that a worker's latest result went into, of ticket `ticket`."""

    version: int
    rule: MergeRule
    rate: float
    ticket: int


@dataclass(slots=True)
class Member:
    """A worker that is in the run."""

    incarnation: int
    samples_per_step: int
    depth: int = 1
    turns: list[Turn] = field(default_factory=list)  # the oldest first
    latest: int = 0  # the ticket of the turn that was issued last
    strikes: int = 0
    merged: Merged | None = None

    def catch_up(self, rule: MergeRule, version: int) -> tuple[float | None, int]:
        """Elastic averaging: `Train.moving_rate` and `Train.own.merged` of the turn that was just added.

        A worker goes on from its own weights right after its own merge, or ahead of it.
        """
        merged = self.merged
        if rule.payload is Kind.WEIGHTS:
            if merged is not None and merged.rule is rule and merged.version == version:
                return merged.rate, merged.ticket
            if len(self.turns) > 1:
                return 0.0, 0
        return None, 0

    @property
    def has_room(self) -> bool:
        """Whether it may have one more turn; not while an earlier one is late, which a later one has overtaken."""
        in_order = not self.turns or self.turns[-1].ticket == self.latest
        return in_order and len(self.turns) < self.depth

    def turn(self, ticket: int) -> Turn | None:
        """The turn of this ticket, while its result is owed."""
        for turn in self.turns:
            if turn.ticket == ticket:
                return turn
        return None

    def end(self, turn: Turn) -> None:
        """Its result has come. It is the worker's own, which makes no other turn of it staler."""
        self.turns.remove(turn)
        for other in self.turns:
            other.received_before += 1
        self.merged = None

    def end_all(self) -> int:
        """None of its results is waited for any more: the samples of all these turns."""
        samples = sum(turn.samples for turn in self.turns)
        self.turns.clear()
        self.merged = None
        return samples


@dataclass(frozen=True, slots=True)
class Held:
    """A result whose payload is received, and that waits for the strategy's decision."""

    part: Part
    rule: MergeRule


@dataclass(frozen=True, slots=True)
class Receive:
    """Take the payload of this result out of the store, to be merged by this rule."""

    result: Trained
    rule: MergeRule


@dataclass(frozen=True, slots=True)
class Received:
    """The payload of this ticket, which `Receive` named, can be merged."""

    ticket: int


@dataclass
class Coordinator:
    """One run's books. `version` and `samples` start where a resumed run left them."""

    strategy: Strategy
    plan: Plan
    version: int = 0
    samples: int = 0
    first_ticket: int = 1
    received: int = 0
    finished: bool = False
    members: dict[int, Member] = field(default_factory=dict)
    _held: dict[int, Held] = field(default_factory=dict)  # by worker: the book of held results
    _receiving: tuple[Trained, Member, Turn] | None = None
    _parked: set[int] = field(default_factory=set)
    _samples_in_flight: int = 0
    _samples_per_step: int = 0
    _started: bool = False

    def __post_init__(self) -> None:
        self._next_ticket = self.first_ticket

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
    def short_of_workers(self) -> bool:
        """Whether the run stands still until more workers join."""
        needed = self.plan.min_workers if self._started else self.plan.workers
        return not self.finished and len(self.members) < needed

    def outstanding(self, worker: int, ticket: int) -> bool:
        """Whether this worker still owes the result of this ticket."""
        return worker in self.members and self.members[worker].turn(ticket) is not None

    # ------------------------------------------------------------ events

    def handle(self, event: Event | Received) -> Receive | list[Action]:
        """Take one event; returns what follows from it. A finished run answers only with refusals."""
        actions: list[Action] = []
        match event:
            case Trained():
                return self._on_trained(event)
            case Received():
                self._on_received(event, actions)
            case Joined() if not self.finished:
                self._on_joined(event, actions)
            case Left():
                self._on_left(event, actions)
            case Refused():
                self._on_refused(event, actions)
            case StopAsked() if not self.finished:
                self._finish(actions, complete=False, reason=event.reason)
            case _:
                pass
        if not self.finished:
            self._wake(actions)
        if self.complete and not self.finished:
            self._finish(actions, complete=True, reason=f"reached max_iter {self.plan.max_iter}")
        return actions

    def _on_joined(self, event: Joined, actions: list[Action]) -> None:
        if event.worker in self.members:
            former = self.members[event.worker].incarnation
            self._on_left(Left(event.worker, former, "a newer one took its place"), actions)
        self.members[event.worker] = Member(event.incarnation, event.samples_per_step, event.depth)
        self._samples_per_step += event.samples_per_step
        self._parked.add(event.worker)

    def _on_left(self, event: Left, actions: list[Action]) -> None:
        if not self._is_member(event.worker, event.incarnation):
            return
        member = self.members.pop(event.worker)
        self._samples_in_flight -= member.end_all()
        self._samples_per_step -= member.samples_per_step
        if event.worker in self._parked:
            self._parked.discard(event.worker)
        elif not self.finished:
            self._carry_out(self.strategy.on_leave(event.worker), actions)

    def _on_trained(self, event: Trained) -> Receive | list[Action]:
        owed = self._owed(event)
        if isinstance(owed, str):
            return [drop_of(event, "late", owed, loss=event.loss)]
        self._receiving = (event, *owed)
        return Receive(event, owed[1].rule)

    def _on_received(self, event: Received, actions: list[Action]) -> None:
        assert self._receiving is not None
        assert self._receiving[0].ticket == event.ticket
        (result, member, turn), self._receiving = self._receiving, None
        member.end(turn)
        self._samples_in_flight -= turn.samples
        staleness = self.received - turn.received_before
        self.received += 1
        member.strikes = 0
        worker, samples = result.worker, turn.samples  # as issued: nobody is credited with more
        part = Part(worker, result.incarnation, result.ticket, samples, staleness, result.loss)
        self._held[worker] = Held(part, turn.rule)
        self._carry_out(self.strategy.on_result(Result(worker, samples, staleness)), actions)

    def _on_refused(self, event: Refused, actions: list[Action]) -> None:
        self._receiving = None
        owed = self._owed(event)
        if isinstance(owed, str):
            actions.append(drop_of(event, "late", owed))
            return
        actions.append(drop_of(event, "refused", event.reason))
        member = owed[0]
        self._samples_in_flight -= member.end_all()  # one given ahead begins with what is refused
        member.strikes += event.blame
        if member.strikes < STRIKES:
            self._park(event.worker, actions)
            return
        why = f"{STRIKES} results in a row were refused, the last: {event.reason}"
        actions.append(SetAside(event.worker, event.incarnation, why))
        self._on_left(Left(event.worker, event.incarnation, why), actions)
        if not self.members and not self.complete:
            self._finish(actions, complete=False, reason=f"every worker was set aside; {why}")

    def _owed(self, event: Trained | Refused) -> tuple[Member, Turn] | str:
        """The worker and the turn that this result is of; why it is not one that is waited for, if it is not."""
        if self.finished:
            return "the run is over"
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

    # ------------------------------------------------------------ decisions

    def _carry_out(self, decision: Decision, actions: list[Action]) -> None:
        for worker in decision.discard:
            self._discard(worker, decision.why, actions)
        if decision.merge:
            self._merge(decision.merge, actions)
        if decision.train:
            self._train(decision.train, actions)

    def _discard(self, worker: int, why: str, actions: list[Action]) -> None:
        part = self._held.pop(worker).part
        actions.append(drop_of(part, "discarded", why, part.staleness, part.loss))

    def _merge(self, workers: tuple[int, ...], actions: list[Action]) -> None:
        held = [self._held.pop(worker) for worker in workers]
        parts, rule = tuple(one.part for one in held), held[0].rule
        before = self.iteration
        self.version += 1
        self.samples += sum(part.samples for part in parts)
        now, rate = self.iteration, self._rate(rule)
        actions.append(Merge(self.version, now, self.samples, rate, parts))
        for part in parts:
            if self._is_member(part.worker, part.incarnation):
                self.members[part.worker].merged = Merged(self.version, rule, rate, part.ticket)
        if not self.complete:  # the end has its own test and model
            if crossed(before, now, self.plan.test_interval):
                actions.append(Evaluate(self.version, now))
            if crossed(before, now, self.plan.snapshot):
                actions.append(Snapshot(self.version, now))

    def _train(self, workers: tuple[int, ...], actions: list[Action]) -> None:
        """Issue turns to each, all of one length, as far as there is work; park those that have none then."""
        left = self.plan.samples - self.samples - self._samples_in_flight
        per_step = sum(self.members[worker].samples_per_step for worker in workers)
        steps = max(1, min(self.strategy.local_steps, -(-left // per_step)))
        enough = len(self.members) >= self.plan.min_workers
        for depth in range(max(self.members[worker].depth for worker in workers)):
            for worker in workers:
                member = self.members[worker]
                if left > 0 and enough and len(member.turns) == depth and member.has_room:
                    actions.append(self._issue(worker, member, steps))
                    left -= steps * member.samples_per_step
        for worker in workers:
            if not self.members[worker].turns:
                self._park(worker, actions)

    def _issue(self, worker: int, member: Member, steps: int) -> Train:
        """The next turn of this worker."""
        rule, former = self.strategy.rule, member.turns[-1] if member.turns else None
        ahead, rate = sum(turn.samples for turn in member.turns), self._rate(rule)
        samples = steps * member.samples_per_step
        turn = Turn(self._next_ticket, samples, self.received, rule)
        member.turns.append(turn)
        member.latest = turn.ticket
        self._next_ticket += 1
        self._samples_in_flight += samples
        moving_rate, merged = member.catch_up(rule, self.version)
        carry_over, member.merged = member.merged is not None or former is not None, None
        return Train(
            worker,
            member.incarnation,
            turn.ticket,
            self.version,
            (self.samples + ahead) // self.plan.batch,
            steps,
            max(1, self._samples_per_step // self.plan.batch),
            rule.payload,
            moving_rate,
            carry_over,
            OwnResults(merged) if former is None else OwnResults(merged, former.ticket, rate),
        )

    def _rate(self, rule: MergeRule) -> float:
        return rule.rate(max(len(self.members), 1))

    def _park(self, worker: int, actions: list[Action]) -> None:
        self._parked.add(worker)
        self._carry_out(self.strategy.on_leave(worker), actions)

    def _wake(self, actions: list[Action]) -> None:
        """Let parked workers join, if there is work for them and enough of them live."""
        if not self._parked or self.short_of_workers:
            return
        if not self._started:
            self._started = True
            if self.plan.test_initialization and self.samples == 0:
                actions.append(Evaluate(self.version, self.iteration))
        if self.plan.samples - self.samples - self._samples_in_flight > 0:
            workers, self._parked = tuple(sorted(self._parked)), set()
            self._carry_out(self.strategy.on_join(workers), actions)

    def _finish(self, actions: list[Action], *, complete: bool, reason: str) -> None:
        self.finished = True
        for worker in sorted(self._held):
            self._discard(worker, "the run is over", actions)
        actions.append(Finish(complete, reason))


def drop_of(
    result: Trained | Refused | Part,
    decision: str,
    reason: str,
    staleness: int = 0,
    loss: float = float("nan"),
) -> Drop:
    """The record of a result that is not merged."""
    return Drop(result.worker, result.incarnation, result.ticket, decision, reason, staleness, loss)


def crossed(before: int, after: int, interval: int) -> bool:
    """Whether a multiple of the interval lies in (before, after]."""
    return interval > 0 and after // interval > before // interval
