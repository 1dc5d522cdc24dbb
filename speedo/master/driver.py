"""The run loop: passes the cluster's events to the coordinator, and its actions to center, cluster and log.

Time is an argument: the same loop runs on Ray with the monotonic clock and in the simulator with a virtual one. Every
wait has a deadline; a missed deadline becomes an event with its cause, with any number of waiting events: once a
deadline is over, the events that have arrived are decided, and then the deadline is checked. So no worker is evicted
whose result arrived in time, and later events cannot delay the check.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest

from speedo.errors import EngineError
from speedo.master.center import RunCenter
from speedo.master.checkpoints import Checkpoints, Snapshots, TakenSnapshot
from speedo.master.cluster import Cluster
from speedo.master.coordinator import Coordinator
from speedo.master.divergence import DivergenceWatch
from speedo.master.journal import Journal
from speedo.master.leaving import Leavers, Notice
from speedo.master.observers import Observer
from speedo.master.reasons import (
    ALL_TRAINED,
    busy_tester,
    silent_tester,
    too_few_joined,
    too_few_left,
)
from speedo.master.returning import Returners
from speedo.master.stopping import BestModel, Outcome, TimeLimit
from speedo.master.turn_book import Receive
from speedo.master.turn_deadlines import HEARTBEAT_S, TurnDeadlines, TurnsUnderWay
from speedo.messages import (
    Action,
    Divided,
    Drop,
    Evaluate,
    Event,
    Finish,
    Joined,
    KeepBest,
    Leaving,
    Left,
    Merge,
    Pause,
    Refused,
    SetAside,
    Snapshot,
    Snapshotted,
    StateSaved,
    StopAsked,
    Tested,
    Testing,
    Train,
    Trained,
)
from speedo.system.failpoints import reached

QUIET_S = 5.0  # the store is looked at when no turn under way was heard of for this long
MOST_TESTS = 4  # tests under way or waiting; each keeps a version in the store
MOST_TOGETHER = 32  # events between two looks at deadlines; who trains again waits for the last


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts in seconds: for workers at the start, for any worker after all are lost, for a first turn."""

    start_s: float = 120.0
    join_s: float = 120.0
    turn_s: float = 120.0
    test_s: float = 600.0  # without a batch of a test that is done
    least_turn_s: float = 0.0  # of any turn: a script may test or save between two of its steps
    return_s: float = 5.0  # after the first worker of a run that was begun before, for the others


@dataclass
class Driver:
    """Runs one coordinator to its end.

    After an outage of the center's store the deadlines of turns are restarted. Inside `together()` the observer hears
    of all events that waited together. `all_trained()` says that no record is left for a script. `with_records` hears
    of each action before it is carried out, and gives commands their records. `divide` gives the workers their shares
    of a batch that is divided anew. `seconds_before` is how long the run had trained before it was resumed.
    """

    coordinator: Coordinator
    center: RunCenter
    cluster: Cluster
    observer: Observer
    clock: Callable[[], float]
    limits: Limits = field(default_factory=Limits)
    has_tester: bool = False
    snapshots: Snapshots | None = None
    checkpoints: Checkpoints | None = None
    divergence: DivergenceWatch | None = None
    journal: Journal | None = None
    taken_over: bool = False  # from another master, with what that has published
    tests_first: bool = False  # the first version, before anybody trains
    together: Callable[[], AbstractContextManager[None]] = nullcontext
    all_trained: Callable[[], bool] = lambda: False
    with_records: Callable[[Action], Action] = lambda action: action
    best: BestModel | None = None
    final_test: bool = True
    seconds_before: float = 0.0
    divide: Callable[[Divided], None] = lambda action: None
    _outages_seen: int = 0
    _heard: float = 0.0
    _done: list[tuple[Action, float]] = field(default_factory=list)
    tests: dict[int, float] = field(default_factory=dict)
    _metrics: dict[int, Tested] = field(default_factory=dict)
    _short_since: float | None = None
    _first_train: float | None = None
    _last_merge: float = 0.0
    _finish: Finish | None = None
    _more_tests: int = 2  # of the last version: its store may be lost just then
    _notice: Notice = field(default_factory=Notice)

    def __post_init__(self) -> None:
        outstanding = self.coordinator.outstanding
        self._limit = TimeLimit(self.coordinator.stopping.rules.max_seconds, self.seconds_before)
        self._deadlines = TurnDeadlines(outstanding, self.limits.turn_s, self.limits.least_turn_s)
        self._turns = TurnsUnderWay(outstanding, self._deadlines)
        self._leavers = Leavers(self.coordinator)
        self._returners = Returners(self.coordinator, self.limits.return_s)

    @property
    def seconds(self) -> float:
        """From the first turn to the last merge."""
        return 0.0 if self._first_train is None else self._last_merge - self._first_train

    def waits(self) -> tuple[list[tuple[Train, float, float | None]], float | None]:
        """See `TurnsUnderWay.owed`, and how long ago the last message came; from any thread."""
        now = self.clock()
        return self._turns.owed(now), now - self._heard if self._heard else None

    def run(self) -> Outcome:
        """Publish the center, train to the end, test the last version. Store failures propagate."""
        self.center.publish()
        self._short_since = self.clock()
        self._returners.begin(self.clock())
        if self.tests_first:
            self._carry_out_all([Evaluate(self.center.version, self.coordinator.iteration)])
        while self._finish is None:
            self._step()
        reached("master-finished")
        # A former master may have been killed after its last merge, before it had done all of this.
        trained = self._first_train is not None or self.taken_over
        trained = trained or self.coordinator.plan.nothing_to_train
        if trained:
            self._checkpoint()  # first: there may be no time for the rest
        if self.final_test and (trained or self.coordinator.samples > 0):
            self._test(Evaluate(self.center.version, self.coordinator.iteration))
        reached("master-testing")
        if trained:
            self._last_snapshot()
        while self.tests or (self.checkpoints and self.checkpoints.deadline() < float("inf")):
            self._step()
        reached("master-tested")
        self._release(self._turns.forget_all())
        self.center.tidy()
        tested = self._metrics.get(self.center.version)
        return Outcome(
            self._finish.complete,
            self._finish.reason,
            self.center.version,
            self.coordinator.iteration,
            self.coordinator.samples,
            max(self.seconds, 0.0),
            tested.metrics if tested is not None else {},
            tested.problem if tested is not None else "",
        )

    def _step(self) -> None:
        first_missed = self._first_missed()
        wait_s = self._next_deadline(first_missed) - self.clock()
        event = self.cluster.next_event(max(0.0, wait_s))
        now = self.clock()
        missed = first_missed <= now
        if event is not None:
            self._heard = now
            waiting = self.cluster.waiting(sys.maxsize if missed else MOST_TOGETHER - 1)
            if waiting:
                self._take_together([event, *waiting])
            else:
                self._take(event)
        if event is None or missed:
            if self._outage_has_ended():
                self._turns.grant(self.clock())
            else:  # not those whose deadline passed meanwhile: their results may wait already
                for overdue in self._overdue(now):
                    self._take(overdue)
        for left in self._leavers.done():
            self.cluster.evict(left.worker, left.incarnation, left.cause, for_good=True)
            self._take(left)
        if self._finish is None and (elapsed := self._limit.passed(self.clock())):
            self._take(elapsed)
        if self._finish is None and self._returners.are_late(self.clock()):
            self._carry_out_all(self.coordinator.go_on())
        for brought in self._returners.brought():
            self._take(brought)
        if self.checkpoints is not None:
            for checkpoint in self.checkpoints.finished(self.clock()):
                self._take(checkpoint)

    def _outage_has_ended(self) -> bool:
        """Try the store when all workers are silent, before one is evicted: after an outage turns are not overdue."""
        now = self.clock()
        if self._turns.soonest() <= now or (self._turns and now >= self._heard + QUIET_S):
            self._heard = now
            self.center.probe()
        before, self._outages_seen = self._outages_seen, self.center.outages
        return before != self._outages_seen

    # ------------------------------------------------------------ events

    def _take_together(self, events: list[Event]) -> None:
        """Decide one after another. Versions between the first merge and the last command are not published."""
        with self.together():
            workers = set[int]()
            for event, after in zip_longest(events, events[1:]):
                more = False
                if isinstance(event, Trained) and isinstance(after, Trained):
                    workers.add(event.worker)
                    more = after.worker not in workers
                self._take(event, more=more)
                if not more:
                    workers.clear()

    def _take(self, event: Event, *, more: bool = False) -> None:
        """`more`: the next event waits already, and both are results, of different workers."""
        now = self.clock()
        if self._returners.keeps(event, now):
            return
        self.observer.saw(event, now)
        if isinstance(event, Trained):
            if self.coordinator.outstanding(event.worker, event.ticket):
                self._turns.measure(event.worker, event.ticket, self._heard)
        elif isinstance(event, Tested):
            self._on_tested(event)
        elif isinstance(event, Leaving):
            self._leavers.told(event)
        elif isinstance(event, StopAsked):
            self._notice.given(now, event.within_s)
            self._wait_for_tests()
        elif isinstance(event, Testing):
            self._wait_for_tests()
        elif isinstance(event, Pause) and event.tests:
            self._metrics.pop(self.center.version, None)  # a script may test it once more
        elif self.checkpoints is not None and isinstance(event, (StateSaved, Left)):
            self.checkpoints.saw(event)
        elif isinstance(event, Refused) and not event.blame:
            self.center.restore()
        self._carry_out_all(self._actions_after(event, more), more)
        if self.divergence is not None and self.divergence.reason and self._finish is None:
            self._carry_out_all(self._actions_after(StopAsked(self.divergence.reason)))
        if isinstance(event, Tested) and self.best is not None and event.version not in self.tests:
            self.best.forget(event.version)
        if isinstance(event, (Trained, Joined, Left, Refused, Pause)):
            now = self.clock()
            self._turns.heard(event, now)
            self._release(self._turns.settle(event.worker, now))
            self._turns.hurry(self.coordinator.broken_off, now)
        if self._finish is None and not self.coordinator.members and self.all_trained():
            self._carry_out_all(self.coordinator.end(ALL_TRAINED))  # who died is not waited for
        if not more:
            self.center.tidy()
        if not self.coordinator.short_of_workers:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = self.clock()

    def _actions_after(self, event: Event, more: bool = False) -> list[Action]:
        """The coordinator's actions after this event; if it asks for a payload, that is received first."""
        answer = self.coordinator.handle(event, more=more)
        while isinstance(answer, Receive):
            refused = self.center.receive(answer.result, answer.rule)
            if refused is not None and not refused.blame:
                self.center.restore()
            answer = self.coordinator.handle(refused or answer, more=more)
        return answer

    def _on_tested(self, event: Tested) -> None:
        if self.tests.pop(event.version, None) is not None:
            self._metrics[event.version] = event
            self.center.release(event.version)
        last = self._finish is not None and event.version == self.center.version
        if event.problem and last and self._more_tests > 0:
            self._more_tests -= 1
            self.center.restore()  # nothing else would put it back
            self._metrics.pop(self.center.version, None)
            self._test(Evaluate(self.center.version, self.coordinator.iteration))

    # ------------------------------------------------------------ actions

    def _carry_out_all(self, actions: list[Action], more: bool = False) -> None:
        """Carry out the actions, then inform the observers, so that no worker waits for what observers write."""
        more = more and not any(isinstance(action, (Train, Evaluate)) for action in actions)
        try:
            for action in actions:
                done = self._carry_out(action, more)
                self._done.append((done, self.clock()))
                is_merge, keeper = isinstance(done, Merge), self.checkpoints
                if is_merge and keeper is not None and keeper.due(self.clock()):
                    # Before the next turns are sent: in sync every worker then saves the state of this version. And
                    # after the observers have been called: some have what is kept beside it.
                    self._tell_what_is_done()
                    self._checkpoint()
        finally:
            self._tell_what_is_done()

    def _tell_what_is_done(self) -> None:
        while self._done:
            self.observer.did(*self._done.pop(0))

    def tell(self, event: Event) -> None:
        """Inform the observers of something that delays the driver's thread; called from that thread."""
        self._tell_what_is_done()
        self.observer.saw(event, self.clock())

    def _carry_out(self, action: Action, more: bool = False) -> Action:
        action = self.with_records(action)
        match action:
            case Merge():
                before = action.samples_seen - sum(part.samples for part in action.parts)
                if self.journal is not None:
                    self.journal.merging(action)
                action = self.center.merge(action, before // self.coordinator.plan.batch, more=more)
                self._last_merge = self.clock()
                if self.divergence is not None:
                    self.divergence.merged(action)
            case Drop():
                self.center.drop(action)
            case Train():
                self._train(action)
            case Divided():
                self.divide(action)
            case Evaluate():
                self._test(action)
            case KeepBest() if self.best is not None:
                action = self.best.keep(action)
            case Snapshot() if self.snapshots is not None:
                self._write_snapshot(partial(self.snapshots.take, action.iteration, False))
            case SetAside():
                self.cluster.evict(action.worker, action.incarnation, action.reason, for_good=True)
            case Finish():
                self._finish = action
        return action

    def _checkpoint(self) -> None:
        if self.checkpoints is not None:
            now, within_s = self.clock(), self._notice.for_histories_s
            for command in self.checkpoints.begin(self.coordinator, self.seconds, now, within_s):
                self.cluster.send(command)

    def _last_snapshot(self) -> None:
        has_one = self.coordinator.samples > 0 or self.coordinator.plan.nothing_to_train
        if self.snapshots is not None and has_one:
            self._write_snapshot(partial(self.snapshots.taken_at_end, self.coordinator.iteration))

    def _write_snapshot(self, take: Callable[[], TakenSnapshot | None]) -> None:
        """Take the weights now; they are written beside the training, once the workers have given their histories."""
        version, iteration = self.center.version, self.coordinator.iteration
        try:
            snapshot = take()
        except EngineError as error:
            problem = f"no snapshot at iteration {iteration}: {error}"
            return self.tell(Snapshotted(version, iteration, problem))
        if snapshot is None:
            return
        if self.checkpoints is None:
            return self.tell(Snapshotted(version, snapshot.iteration, snapshot.write(())))
        for command in self.checkpoints.begin_snapshot(self.coordinator, snapshot, self.clock()):
            self.cluster.send(command)

    def _train(self, command: Train) -> None:
        if self._first_train is None:
            self._first_train = self._last_merge = self.clock()
            self._limit.begin(self._first_train)
        self.center.hold(command.version)
        self._turns.issue(command, self.clock())
        if command.team is not None:
            # Who waits for another member gives up before the master gives up on all.
            patience = max(self._deadlines.limit_of(command) / 2, self.limits.least_turn_s)
            command = replace(command, team=replace(command.team, patience_s=patience))
        self.cluster.send(command)

    def _release(self, over: list[Train]) -> None:
        """The centers of these turns are not needed for them any more."""
        for command in over:
            self.center.release(command.version)

    def _test(self, command: Evaluate) -> None:
        """Queue a test; if the tester is too far behind, skip it and report that."""
        known = command.version in self.tests or command.version in self._metrics
        if not self.has_tester or known:
            return
        if len(self.tests) >= MOST_TESTS and self._finish is None:
            return self.tell(Tested(command.version, {}, busy_tester(len(self.tests))))
        self.center.hold(command.version)
        if self.best is not None:
            self.best.begin(command.version)
        deadline = self.clock() + self.limits.test_s * (len(self.tests) + 1)
        self.tests[command.version] = self._notice.test_by(deadline)
        self.cluster.send(command)

    def _wait_for_tests(self) -> None:
        """Restart the deadlines of all tests: each waits for those before it, and the testers are at work."""
        for place, version in enumerate(self.tests, 1):
            deadline = self.clock() + self.limits.test_s * place
            self.tests[version] = self._notice.test_by(deadline)

    # ------------------------------------------------------------ deadlines

    def _first_missed(self) -> float:
        """When the first deadline of turns, tests and missing workers is missed; infinity without one."""
        soonest = self._turns.soonest()
        if self.tests:
            soonest = min(soonest, *self.tests.values())
        if self._short_since is not None and self._finish is None:
            soonest = min(soonest, self._short_since + self._join_limit())
        return soonest

    def _next_deadline(self, first_missed: float) -> float:
        soonest = first_missed
        if self._finish is None:
            soonest = min(soonest, self._limit.deadline, self._returners.deadline)
        if self._turns:
            soonest = min(soonest, self._heard + QUIET_S)
        if self.checkpoints is not None:
            soonest = min(soonest, self.checkpoints.deadline())
        return soonest if soonest < float("inf") else self.clock() + HEARTBEAT_S

    def _join_limit(self) -> float:
        return self.limits.start_s if self._first_train is None else self.limits.join_s

    def _overdue(self, now: float) -> list[Event]:
        """Missed deadlines, as events."""
        events: list[Event] = []
        for worker, incarnation, cause in self._turns.overdue(now):
            self.cluster.evict(worker, incarnation, cause)
            events.append(Left(worker, incarnation, cause))
        for version, deadline in self.tests.items():
            if deadline <= now:
                self._more_tests = 0  # it would not answer the second time either
                why = self._notice.no_test or silent_tester(self.limits.test_s)
                events.append(Tested(version, {}, why))
        if self._short_since is not None and now >= self._short_since + self._join_limit():
            live, plan = len(self.coordinator.members), self.coordinator.plan
            if self._first_train is None:
                reason = too_few_joined(live, plan.workers, self.limits.start_s)
            else:
                reason = too_few_left(live, plan.min_workers, self.limits.join_s)
            events.append(StopAsked(reason))
        return events
