"""The keeper of a node: an actor that starts and watches the run's workers and servers there."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayError

from speedo.actors.existing_cluster.seats import Seat
from speedo.actors.host_manager import check_records
from speedo.actors.server_host import ServerHost
from speedo.actors.worker_host import WorkerHost
from speedo.bounds import DataShare
from speedo.config.resources import Resources
from speedo.data import default_data_root
from speedo.engines.make import EngineChoice, prepare_process
from speedo.errors import ClusterError
from speedo.run.datasets import make_dataset, preparable_dataset
from speedo.run.host_memory import with_host_memory
from speedo.run.open_store import this_machine
from speedo.run.remote_inputs import fetch_sources, located
from speedo.run.scratch import scratch_folder
from speedo.run.settings import RunSettings
from speedo.run_dir.directory import LOGS
from speedo.solver import SolverSpec, check_solver
from speedo.solver.data_layers import count_records
from speedo.version import VERSION

ANSWER_S: Final = 60.0
FAREWELL_S: Final = 5.0
LOG_BYTES: Final = 200_000  # of each log of a far node that the command brings home


@dataclass(frozen=True, slots=True)
class News:
    """What a keeper has to say: lines for people, and why its node has no worker left and will not have one."""

    notes: tuple[str, ...] = ()
    last_died: str | None = None


class NodeKeeper:
    """On its node what `speedo worker` is on its host.

    `data_root`, a folder or a URI, is searched for relative data paths.
    """

    def __init__(self, name: str, data_root: Path | None, run_dir: Path) -> None:
        self._name, self._run_dir = name, run_dir
        self._given_root = data_root
        self._root = located(data_root) or default_data_root()
        self._notes: list[str] = []
        self._seats: dict[int, Seat] = {}
        self._host: WorkerHost | None = None
        self._serving: ServerHost | None = None
        self._master: Any = None
        self._far_logs: Path | None = None
        self._stack = ExitStack()
        self._leaving = threading.Lock()

    def examine(
        self,
        version: str,
        spec: SolverSpec,
        workers: int,
        split: bool,
        records: int | None,
        share: DataShare,
        choice: EngineChoice,
    ) -> None:
        """Raises `SpeedoError` with what keeps this node from training: SpeeDO, the engine, or the data."""
        if version != VERSION:
            raise ClusterError(
                f"SpeeDO differs: this command has {version}, the node {VERSION}: install the same version on every "
                "node"
            )
        prepare_process(choice)
        fetch_sources(spec.on_node(self._root), self._given_root, self._notes.append)
        missing = preparable_dataset(spec.on_node(self._root))
        if missing is not None:
            make_dataset(self._root, missing, self._notes.append)
        own = spec.on_node(self._root)
        check_solver(own, workers=workers, split=split)
        check_records(self._name, count_records(own), records, share)

    def begin(self, master: Any, needs: Resources, seats: tuple[Seat, ...]) -> None:
        """Start a worker in each of these places. Raises what kept one of them from starting."""
        self._master = master
        settings: RunSettings = ray.get(master.settings.remote(self._name), timeout=ANSWER_S)
        settings = self._stack.enter_context(with_host_memory(settings))
        scratch = self._stack.enter_context(scratch_folder())
        logs = self._logs(settings, scratch)
        self._seats = dict(enumerate(seats))

        def options_of(number: int) -> Mapping[str, Any]:
            return self._seats[number].options(needs)

        self._host = WorkerHost(
            master,
            settings,
            self._name,
            logs,
            scratch,
            self._root,
            self._notes.append,
            options_of,
        )
        if settings.serves:
            address = ray.util.get_node_ip_address()
            self._serving = ServerHost(
                master, settings, self._name, logs, address, note=self._notes.append
            )
            self._serving.start()
        self._host.start(len(seats))

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
        return News(notes, None if self._host is None else self._host.last_died)

    def leave(self, cause: str) -> dict[str, bytes]:
        """End workers and servers, remove their files, and tell the master; returns the ends of logs by their names."""
        with self._leaving:
            if self._host is not None:
                self._host.stop(cause)
            if self._serving is not None:
                self._serving.stop()
            if self._master is not None:
                with suppress(RayError):
                    ray.get(self._master.farewell.remote(self._name), timeout=FAREWELL_S)
            logs = {}
            if self._far_logs is not None and self._far_logs.is_dir():
                logs = {path.name: _tail(path) for path in self._far_logs.iterdir()}
            self._stack.close()
            return logs

    def _logs(self, settings: RunSettings, scratch: Path) -> Path:
        """The run's own folder where that is on this machine; else one that goes with this process."""
        if settings.near.machine == this_machine() and os.path.isdir(self._run_dir):
            return self._run_dir / LOGS
        self._far_logs = scratch / LOGS
        self._far_logs.mkdir()
        return self._far_logs


def _tail(log: Path) -> bytes:
    with suppress(OSError), log.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(0, end - LOG_BYTES))
        return file.read()
    return b""
