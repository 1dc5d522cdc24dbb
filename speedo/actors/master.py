"""The master actor: hands out places, takes workers in, runs the training loop, tells how it goes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from speedo.actors.cluster import RayCluster
from speedo.config import RunConfig
from speedo.errors import ClusterError
from speedo.status import Status
from speedo.training import Assignment, RunResult, RunSettings, Training

NAME = "master"


class MasterActor:
    """A thin shell around `speedo.training.Training`."""

    def __init__(
        self, config: RunConfig, settings: RunSettings, run_dir: Path, records: int | None
    ) -> None:
        from speedo.engines.fatal import capture_stderr
        from speedo.storage.redis_store import RedisStore

        capture_stderr(run_dir / "logs" / "master.log")
        self._settings = settings
        self._hosts: set[str] = set()
        self._cluster = RayCluster(
            lambda worker, incarnation: self._training.roster.release(worker, incarnation)
        )
        store = RedisStore(settings.redis_url)
        self._training = Training(config, settings, run_dir, store, self._cluster, records)

    # ------------------------------------------------------------ the run

    def ready(self) -> None:
        """Answers once the engine is built."""

    def version(self) -> str:
        return self._settings.version

    def use_tester(self, tester: Any) -> None:
        self._cluster.tester = tester

    def run(self) -> RunResult:
        return self._training.run()

    def clean_store(self) -> None:
        self._training.clean_store()

    def stop(self, reason: str) -> None:
        self._cluster.stop(reason)

    def status(self) -> Status:
        return self._training.status()

    # ------------------------------------------------------------ hosts and their workers

    def settings(self, host: str) -> RunSettings:
        """Everything that a host needs to start workers; from now on the master waits for its farewell."""
        self._hosts.add(host)
        return self._settings

    def assign(self, host: str) -> Assignment:
        """A place for one more worker of this host."""
        place = self._training.roster.assign()
        self._training.board.name_host(place.worker, host)
        return place

    def join(self, place: Assignment, handle: Any, samples_per_step: int, layout: int) -> None:
        """Take a worker in; raises `ClusterError` if its net is another."""
        if layout != self._training.layout.digest:
            self._training.roster.release(place.worker, place.incarnation)
            raise ClusterError(
                f"worker {place.worker} has built another net than the master: run the same SpeeDO and Caffe "
                "on every node"
            )
        self._cluster.join(place.worker, place.incarnation, handle, samples_per_step)

    def lost(self, place: Assignment, cause: str) -> None:
        self._cluster.lost(place.worker, place.incarnation, cause)

    def farewell(self, host: str) -> None:
        """This host has let its workers go."""
        self._hosts.discard(host)

    def wait_for_hosts(self, timeout_s: float) -> bool:
        """Whether every host has said farewell in time."""
        deadline = time.monotonic() + timeout_s
        while self._hosts and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self._hosts
