"""The cluster as the driver sees it, over Ray: turns are actor calls, their futures become events."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from speedo.actors.ray_errors import raised_by, why
from speedo.actors.tester_actor import VersionTests
from speedo.actors.worker_actor import WorkerReady
from speedo.engines.evaluation import PartOfTest
from speedo.exchange.channel import CONNECT_S, Channels, EventQueue, first_line, refusal
from speedo.master.fetch_pacing import Pace
from speedo.master.script_tests import ScriptTests
from speedo.messages import (
    Command,
    Evaluate,
    Event,
    Joined,
    Leaving,
    Left,
    Pause,
    Refused,
    SaveState,
    StateSaved,
    StopAsked,
    Train,
    Trained,
)

# A worker's own host knows better than Ray why it died, and may say so within this time.
CAUSE_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Gone:
    """Why a worker is not in the run any more; `for_good`: do not restart it."""

    cause: str
    for_good: bool = False


class RayCluster:
    """Implements `speedo.master.cluster.Cluster`. `send` and `next_event` belong to the driver's thread.

    A worker that is not heard any more becomes an event with its cause, and so does what fails in a thread here.
    """

    def __init__(
        self,
        on_left: Callable[[int, int], None],
        near_folder: Path | None = None,
        pace: Pace | None = None,
        new_tester: Callable[[PartOfTest], Any] | None = None,
        testers: int = 1,
    ) -> None:
        """`near_folder` takes the socket of the channels to workers on this machine; `pace` is that of all others.

        `new_tester` starts one of the `testers`; without it there are no tests.
        """
        self._events: EventQueue[Event] = EventQueue()
        self._channels = (
            None if near_folder is None else Channels(near_folder, self._events, self._lost_soon)
        )
        self._handles: dict[tuple[int, int], Any] = {}
        self._done: dict[tuple[int, int], Any] = {}  # scripts that have ended, and keep their state
        self._gone: dict[tuple[int, int], Gone] = {}
        self._set_aside: dict[int, str] = {}  # why, by worker
        self._lock, self._over = threading.Lock(), False
        self._pace = pace or Pace(known=True)
        self._begun: dict[int, float] = {}  # when far workers fetch, by ticket
        self._on_left = on_left
        # Notified of each result before the driver is, with what to call once the driver may know.
        self.expect: Callable[[Trained, Callable[[], None]], None] | None = None
        self._expected: dict[int, int] = {}  # worker, by ticket
        self._behind: dict[int, list[Event]] = {}  # by worker, until its results are there
        self._ready = deque[Event]()
        self.together: Callable[[], AbstractContextManager[None]] = nullcontext  # around several
        self.tests = VersionTests(new_tester, self._events.put, testers)
        self.script_tests: ScriptTests | None = None

    # ------------------------------------------------------------ from anywhere

    def join(self, worker: int, incarnation: int, handle: Any, ready: WorkerReady) -> None:
        """A worker that is ready, near to the master or not; one that was let go, or comes too late, stays out."""
        channels = self._channels if ready.near else None
        if channels is not None or ready.model is not None:  # a script's end is that of this call
            folder = "" if channels is None else channels.folder
            serving = handle.serve.remote(folder, worker, incarnation).future()
            serving.add_done_callback(
                lambda done: self._aloud(self._served, worker, incarnation, done.exception())
            )
        if channels is not None:
            opened = channels.wait_for(worker, incarnation, gone=serving.done)
            if not opened and not serving.done():  # no turn would reach it
                cause = f"its channel did not open within {CONNECT_S:.0f} s"
                self.lost(worker, incarnation, cause)
        with self._lock:
            gone = self._over or (worker, incarnation) in self._gone
            if not gone:
                self._handles[worker, incarnation] = handle
        if gone:
            self._hang_up(worker, incarnation)
            return
        depth = 2 if ready.overlaps else 1
        there = (depth, ready.meets, ready.runs_at, ready.lost, ready.near)
        handed = (ready.handed, ready.begun)
        self._events.put(Joined(worker, incarnation, ready.samples_per_step, *there, *handed))
        if ready.handed is not None:
            self._events.put(ready.handed)

    def live(self) -> list[tuple[int, int]]:
        """Workers that joined and have not left, with their incarnations."""
        with self._lock:
            return sorted(self._handles)

    def gone(self, worker: int, incarnation: int) -> Gone | None:
        """How a worker came to leave; None if it has not."""
        return self._gone.get((worker, incarnation))

    def set_aside(self, worker: int) -> str | None:
        """Why no other is to take the place of this worker, if so: its host may see its end before it is told why."""
        return self._set_aside.get(worker)

    def cause_of(self, worker: int, incarnation: int) -> str | None:
        """Why a worker left; None if it has not."""
        gone = self.gone(worker, incarnation)
        return None if gone is None else gone.cause

    def lost(self, worker: int, incarnation: int, cause: str, *, done: bool = False) -> None:
        """A worker is gone, or its script is `done`; reported once, the first cause counts."""
        with self._lock:
            if (worker, incarnation) in self._gone:
                return
            self._gone[worker, incarnation] = Gone(cause, for_good=done)
            handle = self._handles.pop((worker, incarnation), None)
            if done and handle is not None:
                self._done[worker, incarnation] = handle
        self._hang_up(worker, incarnation)
        if not done:  # it may continue, and fetch what the run comes to
            self._on_left(worker, incarnation)
        left = Left(worker, incarnation, cause, done)
        if done:  # behind its last result
            self._events.put_last(left)
        else:
            self._events.put(left)

    def withdraw(self, worker: int, incarnation: int, cause: str) -> Any:
        """Take a live worker out of the run, but let it keep its slot: its actor, or None if it is gone."""
        with self._lock:
            handle = self._handles.pop((worker, incarnation), None)
            if handle is not None:
                self._gone[worker, incarnation] = Gone(cause)
        self._hang_up(worker, incarnation)
        if handle is not None:
            self._events.put(Left(worker, incarnation, cause))
        return handle

    def answered(self, message: Event) -> None:
        """What a worker says that has no channel."""
        self._events.put(message)
        if isinstance(message, Trained | Refused):
            start = self._begun.pop(message.ticket, None)
            if isinstance(message, Trained) and start is not None:
                with self._lock:
                    self._pace.fetched(start, message.timings["fetch"])

    def hang_up(self) -> None:
        """Send nobody a command any more, also who joins later."""
        self._over = True
        for worker, incarnation in self.live():
            self._hang_up(worker, incarnation)

    def take_script(self) -> ScriptTests:
        """The run trains a script, which makes its tests itself."""
        self.script_tests = ScriptTests(self._events.put)
        return self.script_tests

    def stop(self, reason: str, within_s: float = 0.0) -> None:
        self._events.put(StopAsked(reason, within_s))

    def leave(self, worker: int, incarnation: int, cause: str) -> None:
        """Have a live worker hand in what it has; it is evicted then."""
        self._events.put(Leaving(worker, incarnation, cause))

    # ------------------------------------------------------------ Cluster

    def send(self, command: Command) -> None:
        if isinstance(command, Evaluate):
            (self.script_tests or self.tests).ask(command)
        elif self._channels is not None and self._channels.send(command):
            return
        elif isinstance(command, Train):
            self._send_far(command)
        else:
            self._ask_for_state(command)

    def next_event(self, timeout_s: float) -> Event | None:
        end = time.monotonic() + timeout_s
        while True:
            if self._ready:
                return self._ready.popleft()
            event = self._events.get(max(0.0, end - time.monotonic()))
            if event is None:
                return None
            self._ready += self._to_be_known(event)

    def waiting(self, most: int) -> list[Event]:
        ready = list(self._ready)
        self._ready.clear()
        with self.together():
            for event in self._events.waiting(most):
                ready += self._to_be_known(event)
        return ready

    def _to_be_known(self, event: Event) -> list[Event]:
        """What the driver may have now; a result comes once more after it was `expected`.

        A pause of a worker, and its end where its work is done, come behind its results.
        """
        if isinstance(event, Pause) or (isinstance(event, Left) and event.done):
            if event.worker in self._expected.values():
                self._behind.setdefault(event.worker, []).append(event)
                return []
        elif self.expect is not None and isinstance(event, Trained):
            if self._expected.pop(event.ticket, None) is None:
                self._expected[event.ticket] = event.worker
                self.expect(event, partial(self._events.put, event))
                return []
            if event.worker not in self._expected.values():
                return [event, *self._behind.pop(event.worker, ())]
        return [event]

    def evict(self, worker: int, incarnation: int, reason: str, *, for_good: bool = False) -> None:
        """Its host ends it, once it has noted what the process does."""
        with self._lock:
            self._handles.pop((worker, incarnation), None)
            self._gone.setdefault((worker, incarnation), Gone(reason, for_good))
            if for_good:
                self._set_aside[worker] = reason
        self._hang_up(worker, incarnation)
        self._on_left(worker, incarnation)

    def _hang_up(self, worker: int, incarnation: int) -> None:
        if self._channels is not None:
            self._channels.close(worker, incarnation)

    def _send_far(self, command: Train) -> None:
        """Now, or when the cable is free for another worker's fetch; members of a team seldom fetch."""
        now = time.monotonic()
        if command.team is not None and command.team.spread:
            return self._train(command)
        with self._lock:
            start = self._pace.start(now)
        if start > now:
            self._later(start - now, self._train, command, start)
        else:
            self._train(command, start)

    def _train(self, command: Train, start: float | None = None) -> None:
        handle = self._handles.get((command.worker, command.incarnation))
        if handle is not None:  # otherwise its end is on its way to the driver
            if start is not None:
                self._begun[command.ticket] = start
            reference = handle.turn.remote(command)
            reference.future().add_done_callback(
                lambda done: self._aloud(self._turn_done, command, done)
            )

    # ------------------------------------------------------------ answers

    def _aloud(self, what: Callable[..., None], *arguments: Any) -> None:
        """Nobody would see what a callback or a timer raises: it ends the run, with its cause."""
        try:
            what(*arguments)
        except Exception as error:
            self.stop(
                f"the master cannot follow its workers: {type(error).__name__}: {first_line(error)}"
            )

    def _later(self, seconds: float, what: Callable[..., None], *arguments: Any) -> None:
        timer = threading.Timer(seconds, self._aloud, (what, *arguments))
        timer.daemon = True
        timer.start()

    def _served(self, worker: int, incarnation: int, error: BaseException | None) -> None:
        """A worker serves its channel no longer; without an error because it was let go."""
        if self._channels is not None:
            self._channels.look_again()
        if error is None:
            return
        if raised_by(error) is not None:
            self.lost(worker, incarnation, why(error))
        else:
            self._lost_soon(worker, incarnation, why(error))

    def _lost_soon(self, worker: int, incarnation: int, cause: str) -> None:
        self._later(CAUSE_WAIT_S, self.lost, worker, incarnation, cause)

    def _turn_done(self, command: Train, done: Any) -> None:
        worker, incarnation = command.worker, command.incarnation
        error = done.exception()
        if error is None:
            trained = done.result()
            if trained is None:  # passed on to a script, which answers by itself
                return
            if not isinstance(trained, Trained | Refused):
                return self.lost(worker, incarnation, f"it answered a turn by {trained!r:.100}")
            self.answered(trained)
        elif (raised := raised_by(error)) is not None:
            self.answered(refusal(command, raised))
        else:
            self._lost_soon(worker, incarnation, why(error))

    def _ask_for_state(self, command: SaveState) -> None:
        worker, incarnation, version = command.worker, command.incarnation, command.version
        place = (worker, incarnation)
        handle = self._handles.get(place) or self._done.get(place)
        if handle is None:
            problem = StateSaved(worker, incarnation, version, problem="its worker is gone")
            self._events.put(problem)
            return

        def done(answer: Any) -> None:
            error = answer.exception()
            if error is None:
                if (saved := answer.result()) is not None:
                    self._events.put(saved)
            else:
                self._events.put(StateSaved(worker, incarnation, version, problem=why(error)))

        handle.save_state.remote(command).future().add_done_callback(
            lambda answer: self._aloud(done, answer)
        )
