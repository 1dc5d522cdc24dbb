"""The actor of a worker that is a script of the user's: starts it, gives it its place, and passes on what it asks.

The script is a process of its own, in which no Ray is. It trains as `speedo.run.script` tells.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from caffenets.files import last_bytes
from speedo.actors.death_causes import SCRIPTS_OWN
from speedo.actors.ray_errors import is_gone
from speedo.actors.script_process import ScriptProcess, environment_of
from speedo.actors.worker_actor import WorkerReady
from speedo.engines.native_failures import capture_stderr, describe_exit
from speedo.errors import EngineError
from speedo.exchange.channel import first_line
from speedo.exchange.channel_relay import ChannelRelay
from speedo.exchange.lease import Claim, DealRequest, LeaseRequest, NotDealt
from speedo.exchange.vector import Layout
from speedo.master.slots import Assignment, ServerAddress
from speedo.messages import SaveState, StateSaved, Tested, Train
from speedo.run.open_store import is_near, overlaps, this_machine
from speedo.run.script_job import FirstModel, ScriptJob
from speedo.run.script_link import (
    PLACE,
    VARIABLE,
    AtTest,
    Done,
    Failed,
    FromScript,
    Hello,
    Question,
    Raised,
    RunOver,
    Serve,
    Start,
    StopRun,
    TestLease,
    TestPart,
    ToScript,
    TurnsEnded,
    address_in,
)
from speedo.run.settings import RunSettings
from speedo.run_dir.directory import LOCK
from speedo.system.cores import UNBOUND, CoreShare, list_of
from speedo.system.private_folders import make_private_folder
from speedo.system.runs_at import RunsAt

JOIN_S: Final = 0.2  # between two looks whether a script that has not joined yet still lives
END_S: Final = 5.0  # for a script to end that has left the run
RAISED_S: Final = 0.5  # the same, if it is known why; so long it has to write that into its log
SAVED_S: Final = 30.0  # for a script to save its state; a checkpoint waits no longer for it
LAST_LINE: Final = 4096  # bytes of a log in which the last line is looked for
# To a master that the script knows.
OF_TURNS: Final = (
    TurnsEnded,
    Claim,
    LeaseRequest,
    DealRequest,
    NotDealt,
    AtTest,
    TestLease,
    TestPart,
)
ROOM: Final = 6  # threads: start, serve, turn, save_state, and two who ask


class ScriptActor:
    """Stands in for `WorkerActor`: same calls, but the turns are the script's."""

    def __init__(self) -> None:
        self._link: Connection | None = None
        self._sending = threading.Lock()
        self._over = threading.Event()  # the script has ended, or trains no more
        self._process = ScriptProcess()
        self._done, self._problem = False, ""
        self._knows_end = False  # it has been notified that the run is over
        self._hello: Hello | None = None  # that of the present place
        self._last: Hello | None = None  # the last, of whichever place
        self._saved: dict[int, StateSaved] = {}  # by version
        self._hears = True  # the script is at the other end of the link
        self._heard_more = threading.Condition()
        # The place that the run's present master gave it, and the one that the script knows.
        self._start: Start | None = None
        self._told: Start | None = None
        self._relay: ChannelRelay | None = None  # far from the master
        self._final: int | None = None  # the version that the run came to

    def process(self) -> int:
        return os.getpid()

    def warm_up(self, settings: RunSettings, threads: int) -> None:
        """Load what the script will import, before it is known which worker this will be."""
        assert isinstance(settings.spec, ScriptJob)
        self._process.load(settings.spec, environment_of(settings, threads))

    def start(
        self,
        settings: RunSettings,
        place: Assignment,
        log: Path,
        scratch: Path,
        data_root: Path | None,
        master: Any = None,
        share: CoreShare = UNBOUND,
    ) -> WorkerReady:
        """Start the script, and wait until it joins, however long it loads. Raises `EngineError` if it does not."""
        assert isinstance(settings.spec, ScriptJob)
        capture_stderr(log)
        share.bind()
        scratch.mkdir(exist_ok=True, mode=0o700)
        self._job, self._log, self._place, self._master = settings.spec, log, place, master
        self._memory = settings.host_memory
        listener = socket.socket(socket.AF_UNIX)
        with listener:
            with address_in(scratch) as address:
                listener.bind(address)
            listener.listen(1)
            listener.settimeout(JOIN_S)
            environment = {
                **environment_of(settings, share.threads),
                VARIABLE: str(scratch),
                PLACE: f"{place.worker}/{settings.workers}",
            }
            self._process.begin(self._job, environment, log, self._trains_no_more)
            self._link = self._accepted(listener)
        threading.Thread(target=self._listen, daemon=True).start()
        run_dir = log.parent.parent  # on another machine there are only logs
        here = str(run_dir) if (run_dir / LOCK).is_file() else ""
        self._runs_at = RunsAt(
            share.host, os.getpid(), share.threads, list_of(os.sched_getaffinity(0))
        )
        self._host = f"{this_machine()}:{scratch.parent}"
        self._start = start = Start(settings.for_others(), place, settings.spec.in_rounds, here)
        self._tell_start()
        if self._final is not None:
            self._tell(RunOver(self._final))
        return self._ready(start)

    def follow(self, settings: RunSettings, place: Assignment, master: Any) -> WorkerReady:
        """Have the script train on for another master, once it asks for turns or records of the former one.

        Raises `EngineError` if it ends before that.
        """
        assert self._start is not None
        with self._heard_more:
            self._master, self._place, self._hello = master, place, None
            self._start = start = replace(self._start, settings=settings, place=place)
            self._heard_more.notify_all()
        if self._relay is not None:
            self._relay.close()
        return self._ready(start)

    def _ready(self, start: Start) -> WorkerReady:
        """What the script says to this place, however long it takes."""
        self._until(lambda: self._hello is not None or self._start is not start)
        if self._start is not start:
            raise EngineError("the run has another master by now")
        if self._done:
            self._tell_start()
        hello = self._last if self._done else self._hello
        if hello is None:
            raise EngineError(f"{self._cause()}; see {self._log}")
        self._last = hello
        settings, near = start.settings, is_near(start.settings.near)
        if not near:  # turns may come before `serve`
            self._relay = ChannelRelay(self._private_folder(), self._answered)
        return WorkerReady(
            self._runs_at,
            hello.batch,
            Layout(hello.blobs).digest,
            near=near,
            meets=self._host if hello.gradients else "",
            overlaps=near and overlaps(settings),
            model=FirstModel(hello.blobs, hello.batch),
            done=self._done,
        )

    def _accepted(self, listener: socket.socket) -> Connection:
        while not self._process.ended.is_set():
            with suppress(TimeoutError):
                made, _ = listener.accept()
                return Connection(made.detach())
        if self._process.status:
            raise EngineError(f"{self._cause()}; see {self._log}")
        raise EngineError(
            f"{self._job.path} ended without a call of speedo.join: a script trains inside `with speedo.join(...)`"
        )

    def serve(self, folder: str, worker: int, incarnation: int) -> None:
        """Have the script take its turns from this channel; returns when it trains no more, or for another master.

        Without one they are those of `turn`, and the master gets their results.
        """
        where, start = folder if self._relay is None else str(self._relay.folder), self._start
        if not self._done and self._hello is not None:  # else a master calls that is gone
            self._tell(Serve(where, self._servers()))
        if not self._until(lambda: self._start is not start) and not self._done:
            raise EngineError(self._cause())

    def _servers(self) -> tuple[ServerAddress, ...]:
        """Where the servers of the center are, once all are there: one may just be started again."""
        import ray

        while not self._over.is_set():
            found: tuple[ServerAddress, ...] | None = ray.get(
                self._master.servers_for.remote(self._place)
            )
            if found is not None:
                return found
            time.sleep(JOIN_S)
        return ()

    def turn(self, command: Train) -> None:
        """Pass it on, where the master has no channel."""
        if self._relay is not None:
            self._relay.send(command)

    def save_state(self, command: SaveState) -> StateSaved | None:
        """Have a script that trains no more save its state; one that trains is asked, and answers, by its channel."""
        if self._relay is not None and not self._done:
            self._relay.send(command)
            return None
        self._tell(command)
        place = (command.worker, command.incarnation, command.version)
        with self._heard_more:
            self._heard_more.wait_for(
                lambda: command.version in self._saved or not self._hears, SAVED_S
            )
            answer = self._saved.pop(command.version, None)
        if answer is not None:
            return answer
        late = f"its script has not answered within {SAVED_S:.0f} s"
        return StateSaved(*place, problem=late if self._hears else "its script has ended")

    def _answered(self, message: Any) -> None:
        import ray
        from ray.exceptions import RayError

        with suppress(RayError):  # the master is gone: others notice
            ray.get(self._master.answered.remote(message))  # one after another, in their order

    def _private_folder(self) -> Path:
        """One with a short name, for a socket."""
        place, memory = self._place, self._memory
        if not memory:
            return make_private_folder("speedo-turns-")
        epoch = self._start.settings.epoch if self._start is not None else 0
        folder = Path(memory, f"turns-{epoch}.{place.worker}.{place.incarnation}")
        folder.mkdir(mode=0o700)
        return folder

    def over(self, version: int) -> None:
        """The run is over; this version of the center is what it came to."""
        self._final, self._knows_end = version, not (self._process.ended.is_set() or self._problem)
        if self._link is not None:
            self._tell(RunOver(version))
        if self._relay is not None:
            self._relay.close()

    def wait(self) -> str:
        """Wait until the script's process has ended; why, if what it did after the training failed.

        One that ended before it knew of the end was a worker that died: that is reported already, and settled.
        """
        self._process.ended.wait()
        return self._cause() if self._process.status and self._knows_end else ""

    # ------------------------------------------------------------ the script

    def _trains_no_more(self) -> None:
        self._over.set()
        with self._heard_more:
            self._heard_more.notify_all()

    def _until(self, holds: Callable[[], bool]) -> bool:
        """Wait until this holds, or the script trains no more; whether it holds."""
        with self._heard_more:
            self._heard_more.wait_for(lambda: holds() or self._over.is_set() or not self._hears)
            return holds()

    def _cause(self) -> str:
        """Why the script ended, with its last words."""
        if not self._process.ended.wait(RAISED_S if self._problem else END_S):
            if self._problem:
                return f"{SCRIPTS_OWN}raised {self._problem}"
            return f"{SCRIPTS_OWN}left the run, and continues outside of it"
        text = f"{SCRIPTS_OWN}{describe_exit(self._process.status)}"
        words = _last_line(self._log)
        if not self._process.status and not self._done:
            return f"{text} inside of `with speedo.join(...)`: leave that block first"
        return f"{text}: {words}" if self._process.status and words else text

    # ------------------------------------------------------------ the link

    def _listen(self) -> None:
        assert self._link is not None
        with suppress(EOFError, OSError):
            while True:
                self._heard(self._link.recv())
        with self._heard_more:
            self._hears = False
            self._heard_more.notify_all()
        if not self._done:
            self._process.ended.wait()
        self._trains_no_more()

    def _heard(self, message: FromScript) -> None:
        import ray
        from ray.exceptions import RayError

        match message:
            case Hello() if self._told is not self._start:
                self._tell_start()
            case Hello():
                with self._heard_more:
                    self._hello = message
                    self._heard_more.notify_all()
            case Tested():
                with suppress(RayError):  # the master is gone: others notice
                    ray.get(self._master.ask.remote(self._place, message))  # before its end is told
            case StateSaved():
                with self._heard_more:
                    self._saved[message.version] = message
                    self._heard_more.notify_all()
            case Raised():
                self._problem = message.problem
                self._process.ended.wait(RAISED_S)
                self._trains_no_more()
            case Done():
                self._done = True
                with suppress(RayError):  # the next master hears of it when this worker follows it
                    ray.get(self._master.ended.remote(self._place))
                self._trains_no_more()
            case StopRun(cause):
                with suppress(RayError):
                    ray.get(self._master.stop.remote(f"stopped by {cause}"))
            case question:
                threading.Thread(target=self._ask, args=(question,), daemon=True).start()

    def _ask(self, question: Question | TurnsEnded) -> None:
        """Answer the script: as the master does, or the next one if this one is gone."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        if isinstance(question, TurnsEnded):
            self._until(lambda: self._told is not self._start)
        while True:
            with self._heard_more:
                asked, is_known = self._master, self._told is self._start
            if isinstance(question, OF_TURNS) and not is_known:
                return self._tell_start()
            if isinstance(question, TurnsEnded):  # the run is over, as the script hears apart
                return
            try:
                answer = ray.get(asked.ask.remote(self._place, question))
                break
            except RayTaskError as error:
                answer = Failed(first_line(error))
                break
            except RayError as error:
                if not (is_gone(error) and self._until(partial(self._is_replaced, asked))):
                    return
        if answer is not None:
            self._tell(answer)

    def _is_replaced(self, master: Any) -> bool:
        return self._master is not master

    def _tell_start(self) -> None:
        self._told = self._start
        self._tell(self._told)

    def _tell(self, message: ToScript | Any) -> None:
        assert self._link is not None
        with self._sending, suppress(OSError):  # its end is being sent
            self._link.send(message)


def _last_line(log: Path) -> str:
    lines = last_bytes(log, LAST_LINE).decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
