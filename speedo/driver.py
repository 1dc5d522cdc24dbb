"""The run loop: events from the cluster into the coordinator, its actions out to center, cluster and log.

Time is an argument: the same loop runs on Ray with the monotonic clock and in the simulator with a virtual
one. Every wait has a deadline; what misses it becomes an event with its cause.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from speedo.center import Center
from speedo.coordinator import Coordinator
from speedo.messages import (
    Action,
    Command,
    Drop,
    Evaluate,
    Event,
    Finish,
    Left,
    Merge,
    SetAside,
    Snapshot,
    StopAsked,
    Tested,
    Train,
    Trained,
)

HEARTBEAT_S = 10.0  # what a death may take to be noticed, on top of the turn itself
TURNS_MEASURED = 200  # turn times that the deadline is taken from
FEWEST_TURNS = 5  # before so many are known the deadline is the user's timeout


MOST_TESTS = 4  # tests under way or waiting; each keeps a version in the store


class Cluster(Protocol):
    """Who carries commands out. Sending does not wait; a death comes back as `Left` with its cause."""

    def send(self, command: Command) -> None: ...

    def next_event(self, timeout_s: float) -> Event | None:
        """The next event, or None after `timeout_s` seconds without one."""
        ...

    def evict(self, worker: int, incarnation: int, reason: str) -> None:
        """Let a worker go: end it if it can be reached; its events are of no interest any more."""
        ...


class Observer(Protocol):
    """Who looks on: the run log, the trace of the simulator. `now` is seconds of the driver's clock."""

    def saw(self, event: Event, now: float) -> None: ...

    def did(self, action: Action, now: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds after which waiting ends: for workers at the start, for any after losing them, for a first turn."""

    start_s: float = 120.0
    join_s: float = 120.0
    turn_s: float = 120.0
    test_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `metrics` are those of `version`, the last; empty if there is no test net."""

    complete: bool
    reason: str
    version: int
    iteration: int
    samples: int
    seconds: float
    metrics: Mapping[str, float]
    test_problem: str = ""


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn under way: its command, whose center is held for it, and when it was issued."""

    command: Train
    issued: float


@dataclass
class Driver:
    """Runs one coordinator to its end. `snapshot(version, iteration)` writes the center as a model file."""

    coordinator: Coordinator
    center: Center
    cluster: Cluster
    observer: Observer
    clock: Callable[[], float]
    limits: Limits = field(default_factory=Limits)
    has_tester: bool = False
    snapshot: Callable[[int, int], None] = lambda version, iteration: None
    _deadlines: list[tuple[float, int, int, int]] = field(default_factory=list)
    _turns: dict[int, _Turn] = field(default_factory=dict)
    _turn_times: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=TURNS_MEASURED)
    )
    _measured: int = 0
    _slow_turn: tuple[float, float] | None = None
    _tests: dict[int, float] = field(default_factory=dict)
    _metrics: dict[int, Tested] = field(default_factory=dict)
    _short_since: float | None = None
    _first_train: float | None = None
    _last_merge: float = 0.0
    _finish: Finish | None = None

    def run(self) -> Outcome:
        """Publish the center, train to the end, test the last version. Store failures propagate."""
        self.center.publish()
        self._short_since = self.clock()
        while self._finish is None:
            self._step()
        if self._first_train is not None:
            self._test(Evaluate(self.center.version, self.coordinator.iteration))
        while self._tests:
            self._step()
        for worker in list(self._turns):
            self._end_turn(worker)
        tested = self._metrics.get(self.center.version)
        seconds = self._last_merge - self._first_train if self._first_train is not None else 0.0
        return Outcome(
            self._finish.complete,
            self._finish.reason,
            self.center.version,
            self.coordinator.iteration,
            self.coordinator.samples,
            max(seconds, 0.0),
            tested.metrics if tested is not None else {},
            tested.problem if tested is not None else "",
        )

    def _step(self) -> None:
        now = self.clock()
        event = self.cluster.next_event(max(0.0, self._next_deadline() - now))
        if event is None:
            for overdue in self._overdue(self.clock()):
                self._take(overdue)
        else:
            self._take(event)

    # ------------------------------------------------------------ events

    def _take(self, event: Event) -> None:
        now = self.clock()
        self.observer.saw(event, now)
        if isinstance(event, Trained):
            rule = self.coordinator.expects(event)
            if rule is not None:
                self._measure_turn(self._turns[event.worker], now)
                event = self.center.receive(event, rule)
        elif isinstance(event, Tested):
            self._on_tested(event)
        for action in self.coordinator.handle(event):
            self._carry_out(action)
        if not isinstance(event, Tested | StopAsked):
            turn = self._turns.get(event.worker)
            if turn and not self.coordinator.outstanding(event.worker, turn.command.ticket):
                self._end_turn(event.worker)
        if not self.coordinator.short_of_workers:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = self.clock()

    def _on_tested(self, event: Tested) -> None:
        if self._tests.pop(event.version, None) is not None:
            self._metrics[event.version] = event
            self.center.release(event.version)

    # ------------------------------------------------------------ actions

    def _carry_out(self, action: Action) -> None:
        match action:
            case Merge():
                before = action.samples_seen - sum(part.samples for part in action.parts)
                self.center.merge(action, before // self.coordinator.plan.batch)
                self._last_merge = self.clock()
            case Drop():
                self.center.drop(action)
            case Train():
                self._train(action)
            case Evaluate():
                self._test(action)
            case Snapshot():
                self.snapshot(action.version, action.iteration)
            case SetAside():
                self.cluster.evict(action.worker, action.incarnation, action.reason)
            case Finish():
                self._finish = action
        self.observer.did(action, self.clock())

    def _train(self, command: Train) -> None:
        now = self.clock()
        if self._first_train is None:
            self._first_train = self._last_merge = now
        self.center.hold(command.version)
        self._end_turn(command.worker)
        self._turns[command.worker] = _Turn(command, now)
        limit = now + self._turn_limit(command.steps)
        deadline = (limit, command.worker, command.incarnation, command.ticket)
        heapq.heappush(self._deadlines, deadline)
        self.cluster.send(command)

    def _end_turn(self, worker: int) -> None:
        """Its center is no longer needed by this worker."""
        turn = self._turns.pop(worker, None)
        if turn is not None:
            self.center.release(turn.command.version)

    def _test(self, command: Evaluate) -> None:
        """Tests queue up behind each other; one that the tester is too far behind for is left out, and told."""
        known = command.version in self._tests or command.version in self._metrics
        if not self.has_tester or known:
            return
        if len(self._tests) >= MOST_TESTS and self._finish is None:
            problem = (
                f"left out: the tester is still busy with {len(self._tests)} versions before it"
            )
            self.observer.saw(Tested(command.version, {}, problem), self.clock())
            return
        self.center.hold(command.version)
        patience = self.limits.test_s * (len(self._tests) + 1)
        self._tests[command.version] = self.clock() + patience
        self.cluster.send(command)

    # ------------------------------------------------------------ deadlines

    def _measure_turn(self, turn: _Turn, now: float) -> None:
        seconds = now - turn.issued
        self._turn_times.append((seconds, seconds / turn.command.steps))
        self._measured += 1
        if self._measured == FEWEST_TURNS or self._measured % 16 == 0:
            place = (95 * len(self._turn_times)) // 100
            whole, per_step = (
                sorted(times)[place] for times in zip(*self._turn_times, strict=True)
            )
            self._slow_turn = (whole, per_step)

    def _turn_limit(self, steps: int) -> float:
        """Three times the 95th percentile of turns; longer turns than those measured get more."""
        if self._slow_turn is None:
            return self.limits.turn_s
        whole, per_step = self._slow_turn
        return 3.0 * max(whole, per_step * steps) + HEARTBEAT_S

    def _next_deadline(self) -> float:
        pending = self._deadlines
        while pending and not self.coordinator.outstanding(pending[0][1], pending[0][3]):
            heapq.heappop(pending)
        soonest = min(self._tests.values(), default=float("inf"))
        if pending:
            soonest = min(soonest, pending[0][0])
        if self._short_since is not None and self._finish is None:
            soonest = min(soonest, self._short_since + self._join_limit())
        return soonest if soonest < float("inf") else self.clock() + HEARTBEAT_S

    def _join_limit(self) -> float:
        return self.limits.start_s if self._first_train is None else self.limits.join_s

    def _overdue(self, now: float) -> list[Event]:
        """What has missed its deadline by now, as events."""
        events: list[Event] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, worker, incarnation, ticket = heapq.heappop(self._deadlines)
            if self.coordinator.outstanding(worker, ticket):
                cause = f"no result for {now - self._turns[worker].issued:.0f} s, far longer than any turn took"
                self.cluster.evict(worker, incarnation, cause)
                events.append(Left(worker, incarnation, cause))
        for version, deadline in self._tests.items():
            if deadline <= now:
                problem = f"no answer from the tester for {self.limits.test_s:.0f} s"
                events.append(Tested(version, {}, problem))
        if self._short_since is not None and now >= self._short_since + self._join_limit():
            live, plan = len(self.coordinator.members), self.coordinator.plan
            if self._first_train is None:
                reason = f"only {live} of {plan.workers} workers joined within {self.limits.start_s:.0f} s"
            else:
                reason = (
                    f"{live} workers were left, {plan.min_workers} are needed, and none joined "
                    f"within {self.limits.join_s:.0f} s"
                )
            events.append(StopAsked(reason))
        return events
