"""An observer that knows the rules of a run on its own, and objects when one is broken.

It is fed what the driver saw and did, looks into the store, and keeps its own books: it shares no code with
the coordinator, the strategies, the rules or the center. DESIGN section 5 and RELIABILITY I1 to I6 are its
source; what belongs to one mode is in `tests.support.mode_checks`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from speedo.master.observers import Observer
from speedo.messages import (
    Action,
    Divided,
    Drop,
    Evaluate,
    Event,
    Finish,
    Joined,
    Leaving,
    Left,
    Merge,
    Part,
    Refused,
    SetAside,
    Snapshot,
    Tested,
    Train,
    Trained,
)
from speedo.sgd_modes.turn_length import as_turn_length, turn_length
from speedo.storage.memory_store import MemoryStore
from tests.support.loss_window import LossWindow
from tests.support.mode_checks import ModeCheck, mode_check
from tests.support.replica import Replica, kind_of, rate_of
from tests.support.rules_of_a_run import KINDS, Rules, Turn, Violation
from tests.support.simulation.simulate import Simulation
from tests.support.simulation.simulator import SimulatedCluster

STRIKES = 3
LONGEST_RUN_S = 100_000.0


class Checker:
    """Implements `speedo.master.driver.Observer`; hands everything on to `next`."""

    def __init__(self, rules: Rules) -> None:
        self.rules, self.next, self.now = rules, None, 0.0
        self.members: dict[int, Joined] = {}
        self.turns: dict[int, Turn] = {}
        self.ahead: dict[int, Turn] = {}  # given to a worker behind the one in `turns`
        self.latest: dict[int, int] = {}  # the ticket that a worker was given last
        self.held: dict[tuple[int, int, int], Part] = {}
        self.replica = Replica(self)
        self.leaving: set[int] = set()  # who was told to leave
        self.strikes: dict[int, int] = {}
        self.own_merge: dict[int, tuple[int, float, int]] = {}  # version, rate, ticket
        self.merged_last: set[int] = set()
        self.owed: tuple[str, int, int, int] | None = None
        self.told: set[tuple[int, int]] = set()
        self.merged_keys: set[tuple[int, int, int]] = set()
        self.events = self.accepted = self.version = self.samples = self.ticket = 0
        names = ("merged", "discarded", "late", "refused", "let go", "too few")
        self.counts = dict.fromkeys(names, 0)
        self.started = False
        self.void = set[int]()  # tickets held, and under way, when too few workers were left
        self.ending = False
        self.left = 0  # events that came together with the last one, and come after it
        self.last: Event | None = None
        # Workers whose results came together, without other events between
        self.in_a_row: set[int] = set()
        self.short_since: float | None = 0.0
        self.patience: defaultdict[int, int] = defaultdict(lambda: 1)  # by slot
        self.finish: Finish | None = None
        options = rules.options
        self.phases = list(options.get("phases") or [options])
        self.phase_number = self.phase_samples = 0
        self.mode: ModeCheck = mode_check(self.phases[0], self)
        self.losses = LossWindow(self.phases[0])

    # ------------------------------------------------------------ the seams

    def watch(self, cluster: SimulatedCluster) -> None:
        """Look into this cluster's store, and see that the run ends."""
        server = next((one.incoming for one in cluster.servers), cluster.store)
        assert isinstance(server, MemoryStore)
        self.cluster = cluster
        self.replica.watch(server, cluster.run)  # so small a vector has one range
        cluster.at(LONGEST_RUN_S, lambda: self.object("the run does not end"))

    def object(self, text: str) -> NoReturn:
        raise Violation(f"at {self.now:.4f}, event {self.events}: {text}")

    def require(self, holds: bool, text: str, *about: object) -> None:
        if not holds:
            self.object(f"{text}: {', '.join(map(str, about))}")

    def follow(self, trace: Observer) -> Checker:
        self.next = trace
        return self

    def saw(self, event: Event, now: float) -> None:
        self.next.saw(event, now)
        if isinstance(event, Tested):
            if not event.problem:  # else it comes in the midst of another: a test is left out
                self.last = event
            return
        self._event_ends(together=self._may_wait(event))
        self.last = event
        if self.left > 0:
            self.left -= 1
        else:
            self.left, self.cluster.gathered = self.cluster.gathered, 0
        self.require(now >= self.now, "time runs backwards")
        self.now, self.events = now, self.events + 1
        match event:
            case Joined() if self.finish is None:
                if event.worker in self.members:
                    self._forget(event.worker)
                self.members[event.worker] = event
                self.strikes[event.worker] = 0
            case Leaving() if self._is(event.worker, event.incarnation):
                self.leaving.add(event.worker)
            case Left():
                if self._is(event.worker, event.incarnation):
                    if event.cause == "told to leave":
                        owes = self._turns_of(event.worker)
                        self.require(not owes, "let go before its results came", *owes)
                        self.counts["let go"] += 1
                    if event.cause.startswith("no result for"):
                        self.patience[event.worker] = min(2 * self.patience[event.worker], 4)
                    self._forget(event.worker)
            case Trained() | Refused():
                self._result(event)

    def did(self, action: Action, now: float) -> None:
        self.next.did(action, now)
        self.require(self.finish is None or isinstance(action, Drop), "after the end", action)
        match action:
            case Train():
                self._train(action)
            case Merge():
                self._merge(action)
            case Drop():
                self._drop(action)
            case Divided():
                self.require(not self.turns, "divided while a worker trains", action)
                for who, size in zip(action.workers, action.records, strict=True):
                    if who in self.members:
                        own = replace(self.members[who], samples_per_step=size * action.unit)
                        self.members[who] = own
            case SetAside():
                self.require(self.strikes[action.worker] == STRIKES, "set aside early", action)
                self._forget(action.worker)
            case Evaluate() | Snapshot():
                self.require(action.version == self.version, "not the newest version", action)
            case Finish():
                self._finish(action)

    # ------------------------------------------------------------ events

    def _is(self, worker: int, incarnation: int) -> bool:
        return worker in self.members and self.members[worker].incarnation == incarnation

    @property
    def too_few(self) -> bool:
        least = self.rules.min_workers
        return self.started and 1 < least > len(self.members)

    def _forget(self, worker: int) -> None:
        del self.members[worker]
        if self.too_few:
            self.void |= {ticket for _, _, ticket in self.held}
            self.void |= {turn.train.ticket for one in self.members for turn in self._turns_of(one)}
        self.leaving.discard(worker)
        self.turns.pop(worker, None)
        self.ahead.pop(worker, None)
        self.own_merge.pop(worker, None)
        self.merged_last.discard(worker)
        self.mode.gone(worker)

    def _result(self, event: Trained | Refused) -> None:
        worker, ticket = event.worker, event.ticket
        self.told.add((worker, ticket))
        expected = self.finish is None and self._is(worker, event.incarnation)
        first = self.turns.get(worker)
        turn = self._take_turn(worker, ticket) if expected else None
        if turn is None:
            self.owed = ("late", worker, event.incarnation, ticket)
            return
        if isinstance(event, Trained) and turn is first:
            self.patience[worker] = 1
        self.own_merge.pop(worker, None)
        self.merged_last.discard(worker)
        if isinstance(event, Refused) or not self.replica.receive(event, turn):
            self.owed = ("refused", worker, event.incarnation, ticket)
            self.strikes[worker] += event.blame if isinstance(event, Refused) else 1
            self.turns.pop(worker, None)  # what was given ahead begins with what is refused
            self.ahead.pop(worker, None)
            self.mode.gone(worker)
            return
        self.strikes[worker] = 0
        staleness = self.accepted - turn.accepted_before
        self.accepted += 1
        key = (worker, event.incarnation, ticket)
        steps, samples = turn.train.steps, turn.samples
        if turn.train.norm or worker in self.leaving:
            per_step = samples // steps
            steps = event.samples // per_step
            self.require(steps * per_step == event.samples, "no whole steps", event)
            self.require(1 <= steps <= turn.train.steps, "wrong length", event)
            samples = event.samples
        self.held[key] = Part(
            *key, samples, staleness, event.loss, steps=steps, records=event.records
        )
        if ticket in self.void:  # what was given ahead begins with it
            self.turns.pop(worker, None)
            self.ahead.pop(worker, None)
        self.mode.accepted(worker)

    def _take_turn(self, worker: int, ticket: int) -> Turn | None:
        """The turn of this ticket, which ends; the worker's other one, if any, is no staler, and the first now."""
        found = next((one for one in self._turns_of(worker) if one.train.ticket == ticket), None)
        if found is None:
            return None
        left = [one for one in self._turns_of(worker) if one is not found]
        self.turns.pop(worker)
        self.ahead.pop(worker, None)
        for one in left:
            one = replace(one, accepted_before=one.accepted_before + 1)
            if found.train.ticket < one.train.ticket:
                one = replace(one, issued=self.now, patience=1)
            self.turns[worker] = one
        return found

    def _turns_of(self, worker: int) -> list[Turn]:
        found = (self.turns.get(worker), self.ahead.get(worker))
        return [turn for turn in found if turn is not None]

    # ------------------------------------------------------------ actions

    def _train(self, train: Train) -> None:
        rules, worker = self.rules, train.worker
        self._phase_may_end()
        options = self._options()
        if not self.started:
            self.started = True
            self.require(len(self.members) >= rules.workers, "begun before all were there")
        self.require(self._is(worker, train.incarnation), "its worker is not there", train)
        self.require(worker not in self.leaving, "its worker was told to leave", train)
        former = self.turns.get(worker)
        room = former is None or (self.members[worker].depth == 2 and worker not in self.ahead)
        self.require(room, "its worker has a turn already", train)
        after = 0 if former is None else former.train.ticket
        self.require(train.own.pending == after, "follows another", after, train)
        in_order = former is None or self.latest[worker] == after
        self.require(in_order, "follows one that a later one has overtaken", train)
        self.require(len(self.members) >= rules.min_workers, "below min_workers", train)
        self.require(train.ticket > self.ticket, "a ticket twice", train)
        self.require(train.version == self.version, "not the newest version", train)
        self.require(
            train.version in self.replica.published(), "its center is not published", train
        )
        own_samples = 0 if former is None else former.samples
        iteration = (self.samples + own_samples) // rules.batch
        self.require(train.iteration == iteration, "wrong iteration", train)
        length = as_turn_length(
            turn_length(options.get("local_steps", 1), options.get("sync_when"))
        )
        most = self.losses.steps or length.at(self.samples // rules.batch)
        self.require(1 <= train.steps <= most, "wrong length", most, train)
        self.require(train.norm == (length.norm if train.steps > 1 else 0.0), "wrong norm", train)
        self.require(train.payload == KINDS[kind_of(options)], "wrong payload", train)
        under_way = [*self.turns.values(), *self.ahead.values()]
        ahead = self.samples + sum(turn.samples for turn in under_way)
        self.require(ahead < rules.batch * rules.max_iter, "beyond the work", train)
        own = self.own_merge.pop(worker, None)
        elastic = kind_of(options) == "WEIGHTS"
        pulls = elastic and own is not None and own[0] == self.version
        expected: tuple[float | None, int] = own[1:] if own is not None and pulls else (None, 0)
        carries = worker in self.merged_last
        if former is not None:
            rate = rate_of(options, len(self.members))
            expected, carries = ((0.0, 0) if elastic and not pulls else expected), True
            self.require(train.own.rate == rate, "another rate than its result's", rate, train)
        pull = train.moving_rate, train.own.merged
        self.require(pull == expected, "wrong moving rate", expected, train)
        self.require(train.carry_over == carries, "carries over", train)
        self.mode.training(worker)
        self.ticket = train.ticket
        samples = train.steps * self.members[worker].samples_per_step
        self.latest[worker] = train.ticket
        turns = self.turns if former is None else self.ahead
        turns[worker] = Turn(
            train, samples, self.accepted, self.now, self.events, self.patience[worker]
        )

    def _merge(self, merge: Merge) -> None:
        self.require(merge.version == self.version + 1, "wrong version", merge)
        for part in merge.parts:
            key = (part.worker, part.incarnation, part.ticket)
            self.require(key not in self.merged_keys, "merged twice", part)
            self.require(key in self.held, "nobody sent it", part)
            self.require(part == self.held[key], "wrong books", part, self.held[key])
            self.require(part.ticket not in self.void, "too few were there meanwhile", part)
        self.require(not self.too_few, "merged while too few workers are there", merge)
        self.mode.merging(merge.parts)
        for part in merge.parts:
            key = (part.worker, part.incarnation, part.ticket)
            self.merged_keys.add(key)
            del self.held[key]
        options = self._options()
        rate = rate_of(options, len(self.members), max(part.staleness for part in merge.parts))
        self.require(math.isclose(merge.rate, rate, rel_tol=1e-12), "wrong rate", rate, merge)
        self.replica.merge(merge, kind_of(options))
        self.version += 1
        samples, before = sum(part.samples for part in merge.parts), self.samples
        self.samples += samples
        self.losses.merged(
            merge.parts, before // self.rules.batch, self.samples // self.rules.batch
        )
        self.phase_samples += samples
        self.counts["merged"] += len(merge.parts)
        self.require(merge.samples_seen == self.samples, "wrong samples", self.samples, merge)
        self.require(merge.iteration == self.samples // self.rules.batch, "iteration", merge)
        for part in merge.parts:
            if self._is(part.worker, part.incarnation):
                self.own_merge[part.worker] = (self.version, merge.rate, part.ticket)
                self.merged_last.add(part.worker)

    def _drop(self, drop: Drop) -> None:
        key = (drop.worker, drop.incarnation, drop.ticket)
        self.counts[drop.decision] += 1
        if drop.decision == "discarded":
            self.require(key in self.held, "nobody sent it", drop)
            part = self.held.pop(key)
            self.require(drop.staleness == part.staleness, "staleness", drop)
            if drop.ticket in self.void:
                self.counts["discarded"] -= 1
                self.counts["too few"] += 1
                self.mode.void(part)
            elif not self.mode.may_discard(part):
                self.ending = True  # right only if the run ends with this event
            return
        self.require(self.owed == (drop.decision, *key), "another record is owed", self.owed, drop)
        self.owed = None

    def _finish(self, finish: Finish) -> None:
        done = self.samples >= self.rules.batch * self.rules.max_iter
        self.require(finish.complete == done, "wrongly complete or not", self.samples, finish)
        self.require(bool(finish.reason), "no reason for the end")
        self.require(not self.held, "not accounted for at the end", self.held)
        self.finish, self.ending = finish, False

    # ------------------------------------------------------------ after each event, and at the end

    def _options(self) -> Mapping[str, Any]:
        return self.phases[self.phase_number % len(self.phases)]

    def has_work(self) -> bool:
        """Whether whoever has no turn is to be given one, where the mode lets it train."""
        under_way = [*self.turns.values(), *self.ahead.values()]
        ahead = self.samples + sum(turn.samples for turn in under_way)
        enough = len(self.members) >= self.rules.min_workers
        return enough and ahead < self.rules.batch * self.rules.max_iter

    def _phase_may_end(self) -> None:
        """A phase of a hybrid run ends when its samples are merged and nobody trains any more."""
        if len(self.phases) == 1 and "iterations" not in self.phases[0]:
            return
        options = self._options()
        if self.phase_samples >= options["iterations"] * self.rules.batch:
            if self.turns:
                self.mode.draining = True
                return
            self.phase_number, self.phase_samples = self.phase_number + 1, 0
            self.own_merge.clear()
            self.mode = mode_check(self._options(), self)
            self.losses = LossWindow(self._options())

    def _may_wait(self, event: Event) -> bool:
        """Whether who trains after the last event may be told after this one: both are results of different workers."""
        if self.left > 0 and isinstance(self.last, Trained) and isinstance(event, Trained):
            self.in_a_row.add(self.last.worker)
            if event.worker not in self.in_a_row:
                return True
        self.in_a_row.clear()
        return False

    def _event_ends(self, *, together: bool = False) -> None:
        """`together`: the next one waited with it, and who trains may be told after that."""
        self.require(self.owed is None, "no record", self.owed)
        self.require(not self.ending, "a result was discarded for no reason")
        if self.finish is not None or together:
            return
        self._phase_may_end()
        self.mode.event_ends()
        rules = self.rules
        for turn in self.turns.values():
            longest = rules.longest_turn_s * turn.patience
            self.require(self.now - turn.issued <= longest, "overdue", turn)
        if len(self.members) >= (rules.min_workers if self.started else rules.workers):
            self.short_since = None
            trains = bool(self.turns) or self.leaving == set(self.members)
            self.require(trains, "there are workers and work, and nobody trains")
            return
        if self.short_since is None:
            self.short_since = self.now
        limit = rules.join_s if self.started else rules.start_s
        limit += rules.gather_s + 1e-6
        self.require(self.now - self.short_since <= limit, "waits too long for workers")

    def ended(self, simulation: Simulation) -> None:
        """The run is over: nothing is open, and nothing is left behind but what could not be known."""
        self._event_ends()
        outcome = simulation.outcome
        self.require(self.finish is not None, "ended without saying so")
        found = (outcome.version, outcome.samples, simulation.center.version)
        self.require(found == (self.version, self.samples, self.version), "wrong outcome", outcome)
        tested = {"version": float(self.version)} if self.started else {}
        self.require(outcome.metrics == tested, "tested", outcome)
        same = simulation.center.vector.tobytes() == self.replica.center.tobytes()
        self.require(same, "the last center is not the published one")
        versions = self.replica.published()
        self.require(versions == {self.version}, "left behind", versions)
        # A payload may stay whose message never came: lost, killed after the push, or still out.
        known = self.told & self.replica.unread()
        self.require(not known, "left behind", *known)
