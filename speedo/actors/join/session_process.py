"""One session of a host in a cluster, in a child process: `python -m speedo.actors.join.session_process DESCRIPTOR`.

Ray's native core may end a process whose master is gone, and a process can belong to one cluster only. So
`worker_command` runs each session in a child and talks to it over a connection. The parent sends the `Request`, and
later perhaps the name of a signal. The child sends notes, states and at last how the session ended. If the connection
closes, the child ends, too.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import psutil

from speedo.actors.join.master_monitor import MasterMonitor
from speedo.actors.ray_node import session
from speedo.actors.ray_node.ports import server_port
from speedo.engines.make import EngineChoice, prepare_to_read
from speedo.errors import ClusterError, ConfigError, EngineError, SpeedoError
from speedo.monitor.status import Status
from speedo.redaction import hide_secrets
from speedo.run.datasets import make_dataset, preparable_dataset
from speedo.run.engine_choice import require_engine
from speedo.run.host_memory import with_host_memory
from speedo.run.remote_inputs import fetch_sources, located
from speedo.run.scratch import scratch_folder
from speedo.system.cores import Bind, Core, CoreOptions
from speedo.version import VERSION

if TYPE_CHECKING:
    from speedo.actors.worker_host import WorkerHost

SLOW_S: Final = 5.0  # a start that waits longer for the master says so
JOIN_S: Final = 90.0  # for a node of Ray to start and join, at least
STATUS_S: Final = 0.5
ANSWER_S: Final = 60.0
FAREWELL_S: Final = 5.0
KEEP_S: Final = 5.0  # for the master to keep what the servers of this host have
LEAVE_S: Final = 10.0  # what a stay that is told to end may take for it


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of a session; 0 workers only serve. `logs` takes the output of its workers, `folder` Ray's files.

    Without `threads`, `bind` and `device` those of the master are used.
    """

    address: str
    token: str
    count: int
    timeout_s: float
    name: str
    logs: Path
    folder: Path
    data_root: Path
    threads: str | None = None
    bind: Bind | None = None
    cores: tuple[tuple[Core, ...], ...] = ()
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Over:
    """The run is over."""

    status: Status


@dataclass(frozen=True, slots=True)
class Lost:
    """The master is gone."""

    why: str


@dataclass(frozen=True, slots=True)
class Crashed:
    """A process that this session needs has died; a new session may work."""

    why: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """A signal ended the session."""


@dataclass(frozen=True, slots=True)
class Failed:
    """An error that the user can fix; for any other error `bug` is its traceback."""

    error: SpeedoError | None
    bug: str = ""


Ending = Over | Lost | Crashed | Stopped | Failed


class Session:
    """The child's side."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._request: Request = connection.recv()
        self._stop: str | None = None
        self._settled = False  # in the loop that looks at `_stop` by itself
        self._node: int | None = None

    def serve(self) -> None:
        """Take part until the run is over, a signal comes or the master is gone; send how it ended."""
        threading.Thread(target=self._listen, name="parent", daemon=True).start()
        monitor = MasterMonitor(self._request.address, self._abandon)
        try:
            ending: Ending = Over(self._take_part(monitor))
        except KeyboardInterrupt:
            ending = Stopped()
        except SpeedoError as error:
            ending = Failed(error)
        except Exception as error:
            if why := _ray_lost_the_master(error):
                self._abandon(why)
            ending = Failed(None, hide_secrets(traceback.format_exc()))
        monitor.close()
        self._tell(ending)  # a second ending is not heard

    def note(self, text: str) -> None:
        self._tell(text)

    def _take_part(self, monitor: MasterMonitor) -> Status:
        request = self._request
        with (
            ExitStack() as stack,
            scratch_folder() as scratch,
            _at_most(max(request.timeout_s, JOIN_S), self._came_late) as joining,
            session.member(
                request.token, request.address, str(request.folder), self.note
            ) as membership,
        ):
            joining.cancel()
            self._node = membership.process
            monitor.start()
            from speedo.actors.server_host import ServerHost
            from speedo.actors.worker_host import WorkerHost

            master = _find_master(request.address, request.timeout_s, self.note)
            try:
                settings = _settings(master, request.name, request.address)
                settings = replace(settings, cores=_cores(request, settings.cores))
                settings = replace(settings, engine=engine_of_host(request, settings.engine))
                prepare_to_read(settings.engine.engine)
                settings = stack.enter_context(with_host_memory(settings))
                root = located(request.data_root) or request.data_root
                if request.count:
                    fetch_sources(settings.spec.on_node(root), request.data_root, self.note)
                    missing = preparable_dataset(settings.spec.on_node(root))
                    if missing is not None:
                        make_dataset(root, missing, self.note)
                elif not settings.serves:
                    raise ClusterError(
                        f"the master at {request.address} has its center by itself: start it with --servers, or "
                        "`speedo worker` here"
                    )
                folders = (request.logs, scratch, root)
                host = WorkerHost(master, settings, request.name, *folders, self.note)
                serving = ServerHost(
                    master,
                    settings,
                    request.name,
                    request.logs,
                    membership.address,
                    lambda: server_port(membership.address, membership.block),
                    self.note,
                )
                try:
                    if settings.serves:
                        serving.start()
                    host.start(request.count)
                    workers = f"{request.count} worker{'s' if request.count > 1 else ''}"
                    role = f"with {workers}" if request.count else "to serve"
                    self.note(f"joined the master at {request.address} {role}")
                    return self._attend(master, host)
                finally:
                    host.stop("its host has left")
                    serving.stop()
            finally:
                monitor.close()  # what is said now counts, and the master may go first
                _say_farewell(master, request.name)

    def _attend(self, master: Any, host: WorkerHost) -> Status:
        """Watch the run until it is over."""
        import ray
        from ray.exceptions import RayError

        self._settled = True
        while True:
            if self._node_died():
                self._tell(Crashed("its Ray node died"))
                self._end_at_once()
            try:
                status: Status = ray.get(master.status.remote(), timeout=ANSWER_S)
            except RayError as error:
                self._abandon(type(error).__name__)
            self._tell(status)
            if host.last_died is not None and not status.over:
                raise EngineError(f"every worker of this host died, the last: {host.last_died}")
            if self._stop is not None:
                with suppress(RayError):
                    ray.get(master.server_leaves.remote(self._request.name), timeout=KEEP_S)
                host.stop(f"its host was stopped by {self._stop}")
                raise KeyboardInterrupt
            if status.over:
                self._tell(
                    Over(status)
                )  # first of all: leaving may take longer than the master stays
                host.stop("the run is over")
                return status
            time.sleep(STATUS_S)

    def _listen(self) -> None:
        """Wait for the parent's request to end; its death counts as one."""
        try:
            self._stop = str(self._connection.recv())
        except (EOFError, OSError):
            self._stop = "the end of its command"
            cleaning = threading.Timer(LEAVE_S, self._end_at_once)
            cleaning.daemon = True
            cleaning.start()
        if not self._settled:
            os.kill(os.getpid(), signal.SIGINT)

    def _tell(self, what: str | Status | Ending) -> None:
        with self._sending, suppress(OSError):  # nobody listens any more: the wish to end is there
            self._connection.send(what)

    def _abandon(self, why: str) -> NoReturn:
        """End the workers and this process: without a master every call of Ray may hang for a minute."""
        self._tell(Lost(why))
        self._end_at_once()

    def _came_late(self) -> None:
        """Ray's calls have deadlines of their own, but not all that it does to start a node."""
        self._tell(
            Failed(
                ClusterError(
                    f"the master at {self._request.address} answers, but this machine's Ray did not join it: open the "
                    f"ports from the master's --port on, on both machines; {self._request.logs} has its words"
                )
            )
        )
        self._end_at_once()

    def _node_died(self) -> bool:
        """Needed because Ray does not notify this process: its calls to the master still work."""
        if self._node is None:
            return False
        try:
            return psutil.Process(self._node).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def _end_at_once(self) -> NoReturn:
        if self._node is not None:
            with suppress(psutil.Error):
                node = psutil.Process(self._node)
                for process in [*node.children(recursive=True), node]:
                    with suppress(psutil.Error):
                        process.kill()
        shutil.rmtree(self._request.folder, ignore_errors=True)
        os._exit(0)


@contextmanager
def _at_most(seconds: float, late: Callable[[], None]) -> Iterator[threading.Timer]:
    """Call `late` unless the timer is cancelled within so many seconds, or this context ends."""
    timer = threading.Timer(seconds, late)
    timer.daemon = True
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()


def _ray_lost_the_master(error: Exception) -> str:
    """Ray's message that the master died or does not answer; empty for any other error."""
    from ray.exceptions import RayError, RayTaskError

    lost = isinstance(error, RayError) and not isinstance(error, RayTaskError)
    return type(error).__name__ if lost else ""


def _find_master(address: str, timeout_s: float, note: Callable[[str], None]) -> Any:
    import ray

    from speedo.actors.master_actor import NAME

    began, said = time.monotonic(), False
    while True:
        try:
            return ray.get_actor(NAME, namespace=session.NAMESPACE)
        except ValueError:
            waited = time.monotonic() - began
            if waited >= timeout_s:
                raise ClusterError(
                    f"there is no SpeeDO master in the Ray cluster at {address}: correct --master"
                ) from None
            if waited >= SLOW_S and not said:
                note(
                    f"Ray answers at {address}; waiting up to {timeout_s:.0f} s for the master itself, "
                    "which may still be starting"
                )
                said = True
            time.sleep(0.2)


def _settings(master: Any, name: str, address: str) -> Any:
    import ray

    theirs = ray.get(master.version.remote(), timeout=ANSWER_S)
    if theirs != VERSION:
        raise ClusterError(
            f"SpeeDO differs: the master at {address} has {theirs}, this node {VERSION}: "
            "install the same version on every node"
        )
    return ray.get(master.settings.remote(name), timeout=ANSWER_S)


def _cores(request: Request, masters: CoreOptions) -> CoreOptions:
    return CoreOptions(
        request.threads or masters.threads, request.bind or masters.bind, request.cores
    )


def engine_of_host(request: Request, masters: EngineChoice) -> EngineChoice:
    """The master's engine on this host's device. Raises `SpeedoError` for a device that it has not."""
    require_engine(masters)
    if request.device is None:
        return masters
    if masters.engine == "caffe":
        raise ConfigError(
            f"the device is {request.device}, but the master's engine is caffe, and with it the solver's solver_mode "
            "decides where Caffe computes; leave --device out, or start the master with --engine torch"
        )
    return replace(masters, device=request.device)


def _say_farewell(master: Any, name: str) -> None:
    import ray
    from ray.exceptions import RayError

    with suppress(RayError):  # the master may be gone already; then there is nobody to tell
        ray.get(master.farewell.remote(name), timeout=FAREWELL_S)


if __name__ == "__main__":
    from speedo.actors.join.session_process import (
        Session as ImportedSession,  # endings are told under this module's name
    )

    signal.signal(signal.SIGINT, signal.default_int_handler)
    ImportedSession(Connection(int(sys.argv[1]))).serve()
