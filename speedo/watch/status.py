"""The current state of a run: updated by the master, shown by the commands."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from speedo.errors import hide_secrets
from speedo.messages import (
    Action,
    Checkpointed,
    Divided,
    Drop,
    Evaluate,
    Event,
    Finish,
    Joined,
    Left,
    Merge,
    Pause,
    SetAside,
    Snapshotted,
    StoreTrouble,
    TeamGivenUp,
    Tested,
    Testing,
    Train,
    Trained,
    Waiting,
)
from speedo.run_dir.checkpoint_file import Counters
from speedo.system.runs_at import RunsAt
from speedo.watch.given_up import GIVEN_UP, GivenUp
from speedo.watch.scores import why_unavailable

ENDED: Final = "ended"  # the state of a worker whose script has left its run
NOTICES = 20  # of the latest that a status carries
STORE_BACK: Final = "the store is back: training continues"
NO_WORKER_WAITS: Final = "no worker waits for the store any longer"
CHECKPOINTS_BACK: Final = "checkpoints are written again"
WORKERS_BACK: Final = "enough workers are back: training continues"
LOG_BACK: Final = "the run log is written again, with every line that waited"
WHERE: Final = ("process", "threads", "cores", "device")  # of `RunsAt`, in a worker's status
RECENT_S = 10.0  # images/s and losses are means over this many of the latest seconds


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker; `state` is training, waiting, or why it is away, with the cause.

    For a worker that waits for the store, it is the store's problem. `process`, `threads`, `cores` and `device` are
    those of `speedo.messages.RunsAt`: 0 and empty for a worker that has not joined, or is away. `team` is the worker
    that leads the team of its present turn; None for a worker that trains by itself.
    """

    worker: int
    host: str
    state: str
    merged: int
    dropped: int
    loss: float
    images_per_s: float
    process: int = 0
    threads: int = 0
    cores: str = ""
    team: int | None = None
    device: str = ""

    @property
    def is_away(self) -> bool:
        """Whether it cannot be given turns now."""
        return self.state.startswith(("gone", "restarting", "rebuilding", ENDED))


def where_in_words(process: int, threads: int, cores: str, device: str = "") -> str:
    """`process 4711, 2 threads, cores 0-1, device cuda:0`; empty of a worker without a process."""
    if not process:
        return ""
    text = f"process {process}, {threads} thread{'s' if threads != 1 else ''}, cores {cores}"
    return f"{text}, device {device}" if device else text


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One server of the center as people see it: `bytes` of its range; `state` is serving, or what it waits for."""

    server: int
    host: str
    bytes: int
    state: str


@dataclass(frozen=True, slots=True)
class OwedTurn:
    """A turn whose result is owed for `since_s` seconds, and overdue in `deadline_s`; `team` are all who do it."""

    worker: int
    since_s: float
    deadline_s: float | None
    team: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a run. `epoch` is NaN if the number of records is not known, `max_iter` 0 if there is no limit.

    `wanted` is the number of workers that the hosts should run; 0 if it is not known yet. `notices` are the latest
    of `noticed` lines for the user: they include what appeared and disappeared between two calls. `master_restarts`
    says why the command has started the master again, each time. `heard_s` is how long ago a worker's last message
    came; None before the first. `standby` is the address at which another master may take over; empty if none follows.
    """

    state: str
    mode: str
    iteration: int
    max_iter: int
    epoch: float
    version: int
    loss: float
    images_per_s: float
    seconds: float
    tested_iteration: int
    metrics: Mapping[str, float]
    workers: tuple[WorkerStatus, ...]
    over: bool
    wanted: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    checkpoint_iteration: int = 0
    checkpoint_problem: str = ""
    store_trouble: str = ""
    notices: tuple[str, ...] = ()
    noticed: int = 0
    log_problem: str = ""
    servers: tuple[ServerStatus, ...] = ()
    testing: str = ""
    master_restarts: tuple[str, ...] = ()
    owed: tuple[OwedTurn, ...] = ()
    heard_s: float | None = None
    standby: str = ""
    counted: str = "images"  # of a script "samples"


@dataclass(slots=True)
class _Line:
    host: str = ""
    state: str = "waiting"
    outlook: str = ""
    trouble: str = ""
    merged: int = 0
    dropped: int = 0
    loss: float = float("nan")
    runs_at: RunsAt | None = None
    team: int | None = None
    recent: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def where(self) -> dict[str, Any]:
        """Its process, threads, cores and device, as `WorkerStatus` has them."""
        at = self.runs_at
        return {} if at is None else {name: getattr(at, name) for name in WHERE}

    @property
    def seen(self) -> str:
        """The state as people see it: of a death, what comes after it; of a wait for the store, why."""
        kind, _, cause = self.state.partition(": ")
        if self.trouble and kind != "gone":
            return f"waiting for the store: {self.trouble}"
        return f"{self.outlook}: {cause}" if kind == "gone" and self.outlook else self.state


@dataclass
class StatusBoard:
    """An observer that keeps the present state; written by one thread, read by others."""

    mode: str
    max_iter: int
    batch: int
    records: int | None = None
    state: str = "waiting for workers"
    iteration: int = 0
    samples: int = 0
    version: int = 0
    tested_iteration: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    over: bool = False
    wanted: int = 0
    finishing: bool = False
    checkpoint_iteration: int = 0
    checkpoint_problem: str = ""
    store_trouble: str = ""
    log_problem: str = ""
    testing: str = ""
    master_restarts: tuple[str, ...] = ()
    standby: str = ""
    counted: str = "images"
    turns: int = 0
    results: int = 0
    given_up: GivenUp = field(default_factory=GivenUp)
    _notices: deque[str] = field(default_factory=lambda: deque(maxlen=NOTICES))
    _noticed: int = 0
    _lines: dict[int, _Line] = field(default_factory=dict)
    _recent: deque[tuple[float, int, float]] = field(default_factory=deque)
    _iterations: dict[int, int] = field(default_factory=dict)  # of versions that are being tested
    _first: float | None = None
    _now: float = 0.0
    _noted_worker: int = -1  # whose wait for the store was noted
    _no_statistics: bool = False  # whether that was noted

    def name_host(self, worker: int, host: str) -> None:
        self._lines.setdefault(worker, _Line()).host = host

    @property
    def started(self) -> bool:
        """Whether the first turn was issued."""
        return self._first is not None

    def expect(self, worker: int, outlook: str) -> None:
        """What follows the death of a worker that is reported now: `restarting in 4 s`, `gone`."""
        line = self._lines.setdefault(worker, _Line())
        line.outlook = outlook
        self._note_given_up(worker, line)

    def _note_given_up(self, worker: int, line: _Line) -> None:
        """Its death and what its host says of it come in either order."""
        kind, _, cause = line.state.partition(": ")
        if kind == "gone" and line.outlook.startswith(GIVEN_UP):
            self.given_up.add(worker, cause, self.iteration)

    def trouble_with_store(self, problem: str) -> None:
        """The store's present problem; empty if there is none."""
        self._note(self.store_trouble, problem, STORE_BACK)
        self.store_trouble = problem

    def trouble_of_worker(self, worker: int, problem: str) -> None:
        """Why this worker waits for the store; empty if it does not. If several wait, the first is noted."""
        before = self._any_worker_waits()
        line = self._lines.setdefault(worker, _Line())
        own, line.trouble = line.trouble, problem
        now = f"worker {worker} waits for the store: {problem}" if self._any_worker_waits() else ""
        if not before:
            self._noted_worker = worker
        elif own and problem not in ("", own) and worker == self._noted_worker:
            self.notice(f"warning: {now}")
        self._note(before, now, NO_WORKER_WAITS)

    def _any_worker_waits(self) -> str:
        return "".join(line.trouble for line in tuple(self._lines.values()))

    def trouble_with_checkpoint(self, problem: str) -> None:
        """Why the latest checkpoint was not written, or is incomplete; empty if it is good."""
        self._note(self.checkpoint_problem, problem, CHECKPOINTS_BACK)
        self.checkpoint_problem = problem

    def trouble_with_log(self, problem: str) -> None:
        """Why lines of the run log wait to be written; empty if none wait."""
        self._note(self.log_problem, problem, LOG_BACK)
        self.log_problem = problem

    def notice(self, text: str) -> None:
        """A line for the user, shown once."""
        self._notices.append(hide_secrets(text))
        self._noticed += 1

    def _note(self, before: str, now: str, over: str) -> None:
        if bool(before) != bool(now):
            self.notice(f"warning: {now}" if now else over)

    def resume(self, counters: Counters) -> None:
        """Start from a checkpoint's figures."""
        self.iteration, self.version = counters.iteration, counters.version
        self.samples = counters.samples
        self.dropped = dict(counters.dropped)

    def saw(self, event: Event, now: float) -> None:
        match event:
            case Joined():
                line = self._lines.setdefault(event.worker, _Line())
                line.state, line.outlook, line.trouble = "waiting", "", ""
                self.given_up.replaced(event.worker, self.iteration)
                line.runs_at = event.runs_at
                if event.lost:
                    self.notice(f"warning: worker {event.worker}: {event.lost}")
            case Left() if not self.over:  # then they are let go
                line = self._lines.setdefault(event.worker, _Line())
                line.state, line.trouble = ENDED if event.done else f"gone: {event.cause}", ""
                line.runs_at = line.team = None
                self._note_given_up(event.worker, line)
            case Pause() if not event.over and event.worker in self._lines:
                self._lines[event.worker].state = "testing" if event.tests else "waiting"
            case Trained():
                self.results += 1
            case Testing():
                iteration = self._iterations.get(event.version, self.iteration)
                self.testing = f"{event.done} of {event.batches} batches at {iteration}"
            case Tested() if not event.problem:
                self.testing = ""
                self.metrics = event.metrics
                self.tested_iteration = self._iterations.pop(event.version, self.iteration)
                if not self._no_statistics and (why := why_unavailable(event.metrics)):
                    self._no_statistics = True
                    self.notice(f"the test at iteration {self.tested_iteration} {why}")
            case Tested():
                self.testing = ""
                iteration = self._iterations.pop(event.version, self.iteration)
                self.notice(f"warning: no test at iteration {iteration}: {event.problem}")
            case Checkpointed():
                self.checkpoint_iteration = (
                    self.checkpoint_iteration if event.bytes == 0 else event.iteration
                )
                self.trouble_with_checkpoint(event.problem)
            case Snapshotted() if event.problem:
                self.notice(f"warning: {event.problem}")
            case StoreTrouble():
                self.trouble_with_store(event.problem)
            case _:
                pass

    def did(self, action: Action, now: float) -> None:
        self._now = now
        match action:
            case Train():
                self.turns += 1
                self._first = now if self._first is None else self._first
                self.state = "training"
                line = self._lines.setdefault(action.worker, _Line())
                line.state = "training"
                line.team = None if action.team is None else action.team.leader
            case Merge():
                self._merged(action, now)
            case Evaluate():
                self._iterations[action.version] = action.iteration
            case Drop():
                line = self._lines.setdefault(action.worker, _Line())
                line.dropped += 1
                self.dropped[action.decision] = self.dropped.get(action.decision, 0) + 1
            case SetAside():
                line = self._lines.setdefault(action.worker, _Line())
                line.state = f"gone: {action.reason}"
                self.given_up.add(action.worker, f"set aside: {action.reason}", self.iteration)
            case Divided():
                self.notice(action.reason)
                self.given_up.redistributed(len(action.workers), self.iteration)
            case TeamGivenUp():
                self.notice(f"warning: {action.reason}")
            case Waiting():
                self.notice(
                    f"warning: the run {action.problem}" if action.problem else WORKERS_BACK
                )
                self.state = action.problem or "training"
            case Finish():
                self.state, self.finishing = "testing the last version", True
            case _:
                pass

    def _merged(self, action: Merge, now: float) -> None:
        self.iteration, self.version = action.iteration, action.version
        self.samples = action.samples_seen
        for part in action.parts:
            line = self._lines.setdefault(part.worker, _Line())
            line.merged += 1
            line.loss = part.loss
            # In most modes a result is merged after others, and its worker may have left meanwhile.
            if not line.state.startswith(("gone", ENDED)):
                line.state = "waiting"
            line.recent.append((now, part.samples))
            while line.recent[0][0] < now - RECENT_S:
                line.recent.popleft()
            self._recent.append((now, part.samples, part.loss))
        while self._recent and self._recent[0][0] < now - RECENT_S:
            self._recent.popleft()

    def status(self, now: float) -> Status:
        """The state as of `now`, on the clock of the events."""
        first = now if self._first is None else self._first
        window = max(min(RECENT_S, now - first), 1e-3)
        recent = [entry for entry in tuple(self._recent) if entry[0] >= now - RECENT_S]
        samples = sum(entry[1] for entry in recent)
        loss = sum(entry[2] * entry[1] for entry in recent) / samples if samples else float("nan")
        workers = tuple(
            WorkerStatus(
                worker,
                line.host,
                line.seen,
                line.merged,
                line.dropped,
                line.loss,
                sum(count for time, count in tuple(line.recent) if time >= now - RECENT_S) / window,
                team=line.team,
                **line.where,
            )
            for worker, line in sorted(self._lines.items())
        )
        return Status(
            self.state,
            self.mode,
            self.iteration,
            self.max_iter,
            self.samples / self.records if self.records else float("nan"),
            self.version,
            loss,
            samples / window,
            now - first,
            self.tested_iteration,
            self.metrics,
            workers,
            self.over,
            self.wanted,
            dict(self.dropped),
            self.checkpoint_iteration,
            self.checkpoint_problem,
            self.store_trouble,
            tuple(self._notices),
            self._noticed,
            self.log_problem,
            testing=self.testing,
            master_restarts=self.master_restarts,
            standby=self.standby,
            counted=self.counted,
        )
