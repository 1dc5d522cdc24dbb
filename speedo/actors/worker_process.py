"""One worker process of a host, and when to restart it."""

from __future__ import annotations

import os
import select
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final

import psutil
import ray
from ray.exceptions import GetTimeoutError, RayError

from speedo.actors.death_causes import SCRIPTS_OWN, cause_in, memory_kills, silent_death, size_of
from speedo.actors.ray_errors import raised_by, why
from speedo.actors.ray_node.actor_class import actor_class
from speedo.actors.worker_actor import WorkerActor, WorkerReady, scratch_of
from speedo.engines import layer_notes
from speedo.engines.native_failures import ENDED, STACK_SIGNAL
from speedo.errors import EngineError, SpeedoError
from speedo.master.restarts import Restarts
from speedo.master.slots import Assignment
from speedo.run.open_store import overlaps
from speedo.run.open_store import this_machine as network_of_machine
from speedo.run.script_job import ScriptJob
from speedo.run.settings import Near, RunSettings
from speedo.system.cores import UNBOUND, CoreShare, this_machine, threads_of
from speedo.system.process_state import states_of, takes_signal

START_S: Final = 120.0  # building a solver may take this long; `--timeout` may give more, as to a script that loads
_SLOW: Final = "if it loads for longer, raise --timeout; else "
STACK_S: Final = 0.1  # for a process that hangs to write where it is
STOPPED_S: Final = 2.0  # for a process that was stopped (SIGSTOP) to be let go on
STOPPED: Final = (
    f"its process was stopped by a signal (SIGSTOP), and not let go on within {STOPPED_S:.0f} s"
)
END_S: Final = 2.0  # for a process to vanish after SIGKILL
OVERLAP_THREADS: Final = 4  # of an actor whose turns overlap: two turns, and requests meanwhile


class WorkerProcess:
    """What a host knows of one worker; all times are seconds of one clock, given by the caller.

    There is no process before `begin` and after `end`. With `given_up` it is not restarted; `given_up_for` is the cause
    if that is a fault. `number` says which of the
    host's it is, from 0 on, whatever its slot: its cores follow from it. `options` are Ray's for its actor.
    """

    def __init__(
        self,
        restarts: int,
        number: int = 0,
        due: float = 0.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.number, self.options = number, options or {}
        self.restarts = Restarts(restarts)
        self.place: Assignment | None = None
        self.former: int | None = None
        self.actor: Any = None
        self.due, self.given_up, self.given_up_for = due, False, ""
        self.since = 0.0  # when its process began, later when it was ready
        self.starting: Any = None
        self.follows = False  # what is starting has trained for a former master
        self.request = 0  # for a place, if not 0; each has a number of its own
        self.asked: Any = None  # the master's answer to it
        self._process: psutil.Process | None = None
        self._death = -1  # a pidfd
        self._trained_by: list[psutil.Process] = []  # its own one, or those of a script
        # Of those that are stopped, by process: the seconds that it had computed, and since when.
        self._stopped: dict[int, tuple[float, float]] = {}
        self._who: Any = None

    def begin(
        self,
        settings: RunSettings,
        place: Assignment,
        logs: Path,
        scratch: Path,
        data_root: Path | None,
        now: float,
        actor: Any = None,
        master: Any = None,
        share: CoreShare = UNBOUND,
    ) -> None:
        """Start a process for this place, or take one that `load_workers` began; it is ready once `answer` says so."""
        self.place, self.former, self.since = place, place.worker, now
        self._limit_s = max(START_S, settings.timeout_s)
        self.log = logs / f"worker-{place.worker}.log"
        self._scratch = scratch_of(scratch, place, settings.epoch)
        self._log_begin, self._kills = size_of(self.log), memory_kills()
        self.actor = actor or _spawn(settings, self.options)
        self._who = self.actor.process.remote()
        self.starting = self.actor.start.remote(
            settings, place, self.log, self._scratch, data_root, master, share
        )

    def follow(
        self, settings: RunSettings, place: Assignment, now: float, master: Any = None
    ) -> None:
        """Give its process this place of another master; it is ready once `answer` says so."""
        self.place, self.former, self.since = place, place.worker, now
        self.starting, self.follows = self.actor.follow.remote(settings, place, master), True

    def wait(self, now: float) -> WorkerReady:
        """Wait until it is ready. Raises `SpeedoError` with what kept it from starting."""
        assert self.place is not None
        who = f"worker {self.place.worker}"
        ready: WorkerReady = started(
            self.starting, self.log, who, self._log_begin, self._limit_s, _SLOW
        )
        self.starting, self.since, self.follows, self._stopped = None, now, False, {}
        self._process = _process(ready.runs_at.process)
        self._trained_by = [] if self._process is None else [self._process]
        if self._death < 0:  # else it follows another master
            with suppress(OSError, AttributeError):  # not in every build of Python
                self._death = os.pidfd_open(ready.runs_at.process)
        if self._process is not None and ready.model is not None:
            self._trained_by = self._process.children(recursive=True)
        return ready

    def answer(self, now: float) -> WorkerReady | None:
        """As `wait`, but None while it is not ready yet."""
        if ray.wait([self.starting], timeout=0)[0]:
            return self.wait(now)
        if now < self.since + self._limit_s:
            return None
        assert self.place is not None
        raise _too_late(f"worker {self.place.worker}", self._limit_s, self.log, _SLOW)

    def is_dead(self) -> bool:
        """Whether it was ready and its process has ended."""
        if self.starting is not None:
            return False  # its answer tells
        kills = memory_kills()
        try:
            if self._process is not None and self._process.status() != psutil.STATUS_ZOMBIE:
                self._kills = kills  # those that it outlived
                return False
        except psutil.NoSuchProcess:
            pass
        return True

    def end_wakes(self, deaths: select.poll) -> None:
        """This poll returns once the process has ended; not while it starts, as its answer tells."""
        if self._death >= 0 and self.starting is None:
            deaths.register(self._death, select.POLLIN)

    def is_stopped(self, now: float) -> bool:
        """Whether what trains was stopped `STOPPED_S` ago, and has not gone on, even between two looks."""
        stopped = dict[int, tuple[float, float]]()
        for one in self._trained_by if self.starting is None else ():
            if (computed := _computed_if_stopped(one)) is not None:
                before = self._stopped.get(one.pid, (-1.0, now))
                stopped[one.pid] = before if before[0] == computed else (computed, now)
        self._stopped = stopped
        return any(now - since >= STOPPED_S for _, since in stopped.values())

    def cause(self) -> str:
        """Why the process died."""
        layer = layer_notes.noted(self._scratch / layer_notes.FILE)
        return cause_in(self.log, self._log_begin, layer) or silent_death(self._kills, self.log)

    def describe_end(self, reason: str) -> None:
        """Write into its log why it is ended by force, and what it does now: a process that hangs cannot."""
        if reason.startswith(SCRIPTS_OWN):  # its words are in the log
            return
        for pid, state in states_of([one.pid for one in self._trained_by]).items():
            with suppress(OSError):
                if not state.hangs and takes_signal(pid, STACK_SIGNAL):
                    os.kill(pid, STACK_SIGNAL)
                    time.sleep(STACK_S)
                with self.log.open("a") as file:
                    file.write(f"{ENDED}{reason}; its process was {state.words}\n")

    def end(self, *, wait: bool = True) -> None:
        """Kill the process, even one that hangs or is stopped."""
        if self._process is None and self._who is not None:
            with suppress(RayError):  # it never said who it is: Ray alone can end it
                self._process = _process(ray.get(self._who, timeout=0))
        if self.actor is not None:
            with suppress(RayError):
                ray.kill(self.actor)
        if self._process is not None:
            with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
                self._process.kill()
                self._process.wait(END_S if wait else 0)
        if self.place is not None and wait:
            shutil.rmtree(self._scratch, ignore_errors=True)
        if self._death >= 0:
            os.close(self._death)
        self._death = -1
        self.place = self.actor = self.starting = self._process = self._who = None
        self.follows, self._trained_by = False, []


def load_workers(settings: RunSettings, count: int) -> list[Any]:
    """This many processes that load what any place of this machine needs, for `WorkerProcess.begin`."""
    settings = replace(settings, near=Near(network_of_machine(), gettempdir()))  # as it will be
    return [loading(settings, count)[0] for _ in range(count)]


def loading(settings: RunSettings, count: int) -> tuple[Any, Any]:
    """One that loads what any of this many places of this host needs, and the answer that comes once it has."""
    actor, threads = _spawn(settings, {}), threads_of(settings.cores, this_machine(), count)
    needs = settings if isinstance(settings.spec, ScriptJob) else settings.engine
    return actor, actor.warm_up.remote(needs, threads)


def _spawn(settings: RunSettings, options: Mapping[str, Any]) -> Any:
    if isinstance(settings.spec, ScriptJob):
        from speedo.actors.script_actor import ROOM, ScriptActor

        return actor_class(ScriptActor, threads=ROOM, **options).remote()
    threads = OVERLAP_THREADS if overlaps(settings) else 1
    return actor_class(WorkerActor, threads=threads, **options).remote()


def _process(number: int) -> psutil.Process | None:
    """The process of this number; None if it is gone already."""
    try:
        return psutil.Process(number)
    except psutil.NoSuchProcess:
        return None


def _computed_if_stopped(process: psutil.Process) -> float | None:
    """For how many seconds this process has computed; None if it is not stopped."""
    with suppress(psutil.NoSuchProcess):
        if process.status() == psutil.STATUS_STOPPED:
            return float(sum(process.cpu_times()))
    return None


def started(
    reference: Any,
    log: Path,
    who: str,
    log_begin: int = 0,
    timeout_s: float = START_S,
    remedy: str = "",
) -> Any:
    """The answer of an actor's `start`; a death becomes an error with Caffe's own words."""
    try:
        return ray.get(reference, timeout=timeout_s)
    except GetTimeoutError:
        raise _too_late(who, timeout_s, log, remedy) from None
    except RayError as error:
        raised = raised_by(error)
        if isinstance(raised, SpeedoError):
            raise raised from None
        cause = why(error) if raised is not None else cause_in(log, log_begin) or why(error)
        raise EngineError(f"{who} could not start: {cause}; see {log}") from None


def _too_late(who: str, limit_s: float, log: Path, remedy: str) -> EngineError:
    return EngineError(f"{who} did not start within {limit_s:.0f} s; {remedy}see {log}")
