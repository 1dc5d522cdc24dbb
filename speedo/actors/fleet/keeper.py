"""The keeper of a node: an actor that starts and watches the run's workers and servers there."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayError

from caffenets.files import last_bytes
from speedo.actors.fleet.seats import Seat
from speedo.actors.host_manager import check_records, left_because
from speedo.actors.join.host_link import HostFailed, HostLink, Leave, Over, Stopped
from speedo.actors.ray_node.ports import ring_ports, server_port
from speedo.actors.servers.server_host import ServerHost
from speedo.actors.worker_host import WorkerHost
from speedo.data.roots import default_data_root
from speedo.engines.make import EngineChoice, prepare_process
from speedo.engines.solver import SolverSpec, check_solver
from speedo.engines.solver.data_layers import count_records
from speedo.errors import ClusterError, EngineError, SpeedoError
from speedo.run.config.resources import Resources
from speedo.run.datasets import make_dataset, preparable_dataset
from speedo.run.host_memory import with_host_memory
from speedo.run.open_store import this_machine
from speedo.run.remote_inputs import fetch_sources, located
from speedo.run.scratch import scratch_folder
from speedo.run.script_job import ScriptJob
from speedo.run.settings import RunSettings
from speedo.run_dir.directory import LOGS
from speedo.run_dir.process_logs import LogTimes
from speedo.system.appended import AppendedLines
from speedo.system.bounds import DataShare
from speedo.version import VERSION
from speedo.watch.status import Status

ANSWER_S: Final = 60.0
FAREWELL_S: Final = 5.0
KEEP_S: Final = 5.0  # for the master to keep what the servers of this host have
STATUS_S: Final = 0.5
HAND_IN_S: Final = 0.2  # how often is looked whether all results are there
LOG_BYTES: Final = 200_000  # of each log of a far node that the command brings home


@dataclass(frozen=True, slots=True)
class News:
    """What a keeper has to say: lines for people, and why its node has no worker left and will not have one.

    `output` is what worker 0 has printed there, if it is a script.
    """

    notes: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    last_died: str | None = None


class NodeKeeper:
    """Has the workers and servers of one node, as the fleet says, or as `speedo worker` offers where that started it.

    `node` is the id of that node: on any other it does nothing. `data_root`, a folder or a URI, is searched for
    relative data paths.
    """

    def __init__(self, node: str, name: str, data_root: Path | None, run_dir: Path) -> None:
        self._name, self._run_dir = name, run_dir
        self._node = str(ray.get_runtime_context().get_node_id())
        self._is_home = self._node == node
        self._link = HostLink.of_this_node() if self._is_home else None
        self._given_root = data_root if self._link is None else self._link.offer.data_root
        self._root = located(self._given_root) or self._given_root or default_data_root()
        self._notes: list[str] = []
        self._seats: dict[int, Seat] = {}
        self._host: WorkerHost | None = None
        self._serving: ServerHost | None = None
        self._master: Any = None
        self._host_memory = ""
        self._far_logs: Path | None = None
        self._stack = ExitStack()
        self._leaving = threading.Lock()
        self._left = False
        self._attends = False  # its command learns how the run goes
        self._leave_by = math.inf  # this host leaves then at the latest, once it is to leave
        # Of scripts alone: set once none of them is waited for any more.
        self._scripts_end: threading.Event | None = None
        self._ending = False
        self._output: AppendedLines | None = None
        self._printing = threading.Lock()

    def examine(
        self,
        version: str,
        spec: SolverSpec | ScriptJob,
        workers: int,
        split: bool,
        records: int | None,
        share: DataShare,
        choice: EngineChoice,
    ) -> str:
        """The id of its node, which can train.

        Raises `SpeedoError` with what keeps this node from training: SpeeDO, the engine, or the data.
        """
        if not self._is_home:
            return self._node
        with self._told():
            if version != VERSION:
                raise ClusterError(
                    f"SpeeDO differs: the master has {version}, this node {VERSION}: install the same version on "
                    "every node"
                )
            if self._link is not None and self._link.offer.count:
                spec = self._link.offer.work(spec)
            if isinstance(spec, ScriptJob):
                self._require_script(spec)
                return self._node
            if self._link is not None:
                choice = self._link.offer.engine(choice)
            prepare_process(choice)
            if self._link is not None and not self._link.offer.count:
                return self._node
            fetch_sources(spec.on_node(self._root), self._given_root, self._note)
            missing = preparable_dataset(spec.on_node(self._root))
            if missing is not None:
                make_dataset(self._root, missing, self._note)
            own = spec.on_node(self._root)
            check_solver(own, workers=workers, split=split)
            check_records(self._name, count_records(own), records, share)
        return self._node

    def _require_script(self, job: ScriptJob) -> None:
        """A cluster of the user's has the script on every node; a host's own command fails with its own words."""
        if self._link is None and not job.path.is_file():
            raise ClusterError(
                f"the script {job.path} is not on this node: put it into a folder that all nodes share"
            )

    def begin(self, master: Any, needs: Resources, seats: tuple[Seat, ...]) -> None:
        """Start a worker in each of these places, or those that this host offers.

        Raises what kept one of them from starting.
        """
        self._master = master
        with self._told():
            settings = self._settings_of(master)
            offer = None if self._link is None else self._link.offer
            if offer is not None and not offer.count and not settings.serves:
                raise ClusterError(
                    f"the master at {offer.address} has its center by itself: start it with --servers, or "
                    "`speedo worker` here"
                )
            settings = self._stack.enter_context(with_host_memory(settings))
            self._host_memory = settings.host_memory
            scratch = self._stack.enter_context(scratch_folder())
            logs = self._logs(settings, scratch)
            if logs != self._run_dir / LOGS:  # the run's own are seen by its command
                self._stack.enter_context(LogTimes(logs))
            if isinstance(settings.spec, ScriptJob):
                self._scripts_end = threading.Event()
                self._output = AppendedLines(logs / "worker-0.log")
            self._seats = dict(enumerate(seats))
            self._host = WorkerHost(
                master,
                settings,
                self._name,
                logs,
                scratch,
                self._root,
                self._note,
                lambda number: {} if offer else self._seats[number].options(needs),
            )
            if settings.serves:
                address = ray.util.get_node_ip_address()
                port = partial(server_port, address, offer.block) if offer else lambda: None
                self._serving = ServerHost(
                    master, settings, self._name, logs, address, port, self._note
                )
                self._serving.start()
            try:
                self._host.start(offer.count if offer else len(seats))
            except SpeedoError:
                if not self._ending:
                    raise  # else its scripts came too late, and were let go
            if self._link is not None:
                self._joined(self._link)

    def _settings_of(self, master: Any) -> RunSettings:
        """Those of the run, with what this host offers."""
        settings: RunSettings = ray.get(master.settings.remote(self._name), timeout=ANSWER_S)
        if self._link is None:
            return settings
        offer = self._link.offer
        cores, ports = offer.core_options(settings.cores), ring_ports(offer.block)
        settings = replace(settings, cores=cores, ring_ports=ports)
        if isinstance(settings.spec, ScriptJob):
            return replace(settings, spec=offer.work(settings.spec))
        return replace(settings, engine=offer.engine(settings.engine))

    def follow(self, master: Any) -> None:
        """The run has another master, which the workers of this node join."""
        with self._told():
            self._master = master
            settings = replace(self._settings_of(master), host_memory=self._host_memory)
            if self._host is not None:
                self._host.follow(master, settings)

    def _joined(self, link: HostLink) -> None:
        """From now on the command of this host hears how the run goes."""
        count = link.offer.count
        role = f"with {count} worker{'s' if count > 1 else ''}" if count else "to serve"
        self._note(f"joined the master at {link.offer.address} {role}")
        self._attends = True
        threading.Thread(target=self._attend, args=(link,), name="host", daemon=True).start()

    def _attend(self, link: HostLink) -> None:
        """Tell the command of this host how the run goes, and leave when either ends."""
        while not self._left:
            try:
                master = self._master
                status: Status = ray.get(master.status.remote(), timeout=ANSWER_S)
            except RayError:
                time.sleep(STATUS_S)
                continue  # the master is gone: another one comes, or the command sees it, too
            link.tell(status)
            last_died = None if self._host is None else self._host.last_died
            wish = self._wish(link)
            waits = self._scripts_end is not None and not self._scripts_end.is_set()
            if status.over and not waits:
                link.tell(Over(status))  # first of all: leaving may take longer than the master
                self.leave("the run is over")
            elif wish is not None:
                if self._hands_in(wish):
                    time.sleep(HAND_IN_S)
                    continue
                with suppress(RayError):
                    ray.get(master.server_leaves.remote(self._name), timeout=KEEP_S)
                self.leave(left_because(wish.why))
                link.tell(Stopped())
            elif last_died is not None:
                link.tell(
                    HostFailed(
                        EngineError(f"every worker of this host died, the last: {last_died}")
                    )
                )
                self.leave("its workers died")
            time.sleep(STATUS_S)

    def _wish(self, link: HostLink) -> Leave | None:
        """What wants this host to leave: its command, or else somebody at the master."""
        told = None if self._host is None else self._host.leave_s
        return link.leave or (None if told is None else Leave("`speedo leave`", told))

    def _hands_in(self, wish: Leave) -> bool:
        """Whether a result of this host is still waited for. Its workers get no more turns from now on."""
        assert self._host is not None
        now = time.monotonic()
        self._leave_by = min(self._leave_by, now + wish.within_s)
        if now >= self._leave_by:
            return False
        there = True
        with suppress(RayError):
            asked = self._master.host_leaves.remote(self._name, wish.why)
            there = ray.get(asked, timeout=self._leave_by - now)
            # The master knows it now, so it takes a shorter turn for what it is.
            self._host.hand_in(left_because(wish.why))
        return there

    def _tell_whether_over(self, link: HostLink) -> None:
        """A run may end while the workers of this host start: nobody else tells its command."""
        if self._master is not None:
            with suppress(RayError):
                status: Status = ray.get(self._master.status.remote(), timeout=FAREWELL_S)
                if status.over:
                    link.tell(Over(status))

    def _note(self, text: str) -> None:
        """For the command that started this node: that of this host, else that of the run."""
        if self._link is None:
            self._notes.append(text)
        else:
            self._link.tell(text)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """An error that the user can mend is sent to the command of this host, too."""
        try:
            yield
        except SpeedoError as error:
            if self._link is not None:
                self._link.tell(HostFailed(error))
            raise

    def change(self, seats: tuple[Seat, ...]) -> None:
        """From now on have a worker in each of these places, and no other."""
        assert self._host is not None
        wanted = {seat.key: seat for seat in seats}
        left = {number for number, seat in self._seats.items() if seat.key not in wanted}
        for number in left:
            del self._seats[number]
        for seat in self._seats.values():
            wanted.pop(seat.key)
        free = [n for n in range(len(self._seats) + len(wanted)) if n not in self._seats]
        self._seats.update(zip(free, wanted.values(), strict=False))
        self._host.change(len(self._seats), left)

    def news(self) -> News:
        """What there is to say since the last time."""
        notes, self._notes[:] = tuple(self._notes), []
        return News(notes, self._printed(), None if self._host is None else self._host.last_died)

    def let_scripts_end(self, version: int) -> News:
        """See `WorkerHost.let_scripts_end`; the notes are its sentences."""
        self._ending, host = True, self._host
        bad_ends = [] if host is None else host.let_scripts_end(version, (), lambda: None)
        return News(tuple(bad_ends), self._printed())

    def _printed(self) -> tuple[str, ...]:
        with self._printing:
            return () if self._output is None else tuple(self._output.new())

    def release_scripts(self) -> None:
        """Wait no longer for them: this node may leave."""
        if self._scripts_end is not None:
            self._scripts_end.set()

    def leave(self, cause: str) -> dict[str, bytes]:
        """End workers and servers, remove their files, and tell the master; returns the ends of logs by their names."""
        if self._link is not None and not self._attends:
            self._tell_whether_over(self._link)
        with self._leaving:
            self._left = True
            if self._host is not None:
                self._host.stop(cause)
            if self._serving is not None:
                self._serving.stop()
            if self._master is not None:
                with suppress(RayError):
                    ray.get(self._master.farewell.remote(self._name), timeout=FAREWELL_S)
                self._master = None
            logs = {}
            if self._far_logs is not None and self._far_logs.is_dir():
                logs = {path.name: last_bytes(path, LOG_BYTES) for path in self._far_logs.iterdir()}
            self._stack.close()
            return logs

    def _logs(self, settings: RunSettings, scratch: Path) -> Path:
        """The host's; the run's own where that is on this machine; else a folder that goes with this process."""
        if self._link is not None:
            return self._link.offer.logs
        if settings.near.machine == this_machine() and os.path.isdir(self._run_dir):
            return self._run_dir / LOGS
        self._far_logs = scratch / LOGS
        self._far_logs.mkdir()
        return self._far_logs
