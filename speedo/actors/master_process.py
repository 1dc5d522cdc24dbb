"""The master as its command has it: an actor, and another one that takes over when its process is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import ray
from ray.exceptions import GetTimeoutError, RayError

from speedo.actors.attempts import Attempt
from speedo.actors.death_causes import cause_in, size_of
from speedo.actors.master_actor import NAME, MasterActor
from speedo.actors.ray_node.actor_class import actor_class
from speedo.actors.ray_node.kept_gcs import has_ended
from speedo.actors.run_servers import RunningServices
from speedo.actors.worker_process import started
from speedo.errors import EngineError
from speedo.run_dir.directory import LOGS

THREADS: Final = 16
HUNG_S: Final = 30.0  # without an answer
GONE_S: Final = 10.0  # for a killed process to be gone


def load_master() -> Any:
    """A process that loads what a master needs, before it is known what it masters."""
    return actor_class(MasterActor, name=NAME, threads=THREADS, made_later=True).remote()


class MasterProcess:
    """The master of a run. `actor` is the present one, `run` the reference of its run, `tester` of its testers' start.

    `settings` are those of the present one, whose epoch is above those of the ones before.
    """

    def __init__(
        self,
        servers: RunningServices,
        attempt: Attempt,
        note: Callable[[str], None],
        *,
        takes_hosts: bool,
    ) -> None:
        """It begins to build its engine. The `attempt` counts restarts, and has their causes."""
        self._prepared = prepared = servers.prepared
        self._scratch, self._note = servers.scratch, note
        self._takes_hosts = takes_hosts
        self._log = prepared.run_dir / LOGS / "master.log"
        self._attempt = attempt
        self.settings = servers.settings
        self.run: Any = None
        self.tester: Any = None
        self.asked_to_stop = ""  # why; whoever follows the present one is asked, too
        self._process: psutil.Process | None = None  # once it has begun
        checkpoint = None if prepared.resumed is None else prepared.resumed.path
        self._make(servers.master, checkpoint, takes_over=attempt.takes_over)

    def _make(self, loaded: Any, checkpoint: Path | None, *, takes_over: bool) -> None:
        self._log_begin = size_of(self._log)
        self.actor = loaded
        self.actor.make.remote(
            self._prepared.config,
            self.settings,
            self._prepared.run_dir,
            self._scratch,
            self._prepared.records,
            checkpoint,
            self._takes_hosts,
            takes_over,
        )

    def begin(self) -> None:
        """Have it run, once its engine is built. Raises `EngineError`."""
        number = started(self.actor.ready.remote(), self._log, "the master", self._log_begin)
        with suppress(psutil.NoSuchProcess):  # gone already: `run` will say so
            self._process = psutil.Process(number)
        self._since = time.monotonic()
        self.run = self.actor.run.remote()

    def start_tester(self) -> None:
        """Have its testers started, if the run has tests; where it goes on, they are started for the next test."""
        if self._prepared.settings.spec.has_test and not self._attempt.takes_over:
            self.tester = self.actor.start_tester.remote()

    def replace(self, error: RayError) -> bool:
        """Have another one take the run over, after this error of the present one; False if it cannot be replaced.

        Raises `FencedError` if another command has the run.
        """
        if self.settings.serves or self.run is None:
            return False  # what servers know of their master is its alone
        # A command that was stopped for long finds another one's master: that one's epoch is not to be raised.
        self._attempt.require_ours(self._prepared.run_dir)
        if isinstance(error, GetTimeoutError):
            why = f"the master's process did not answer for {HUNG_S:.0f} s"
        else:
            why = f"the master's process died: {cause_in(self._log, self._log_begin) or 'killed'}"
        began, up_s = time.monotonic(), time.monotonic() - self._since
        while (pause := self._attempt.restarts.pause_after(up_s)) is not None:
            self._end()
            self._note(f"warning: {why}; another one takes over")
            time.sleep(pause)
            epoch = self._attempt.claims(self._prepared.run_dir, continues=True)
            self.settings = self.settings.for_successor(epoch, why)
            self._attempt.causes = self.settings.master_restarts
            self._make(load_master(), None, takes_over=True)
            self.tester = None  # the next test starts one
            try:
                self.begin()
            except EngineError as failed:
                why, up_s = str(failed), 0.0
                continue
            self._note(f"another master has taken over, after {time.monotonic() - began:.1f} s")
            return True
        return False

    def _end(self) -> None:
        with suppress(RayError):
            ray.kill(self.actor)
        self.close()

    def close(self) -> None:
        """End the process, also one that hangs or is stopped: only then is its part in the run over for sure.

        Ray, which may be dead, is not asked.
        """
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(psutil.Error):
            process.kill()
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline and not has_ended(process):
            time.sleep(0.01)
