"""Tests versions of the center while training continues: the tester actor, and the queue of versions to test."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from speedo.engines.native_failures import capture_stderr
from speedo.errors import SpeedoError
from speedo.failpoints import reached
from speedo.master.slots import ServerAddress
from speedo.messages import Evaluate, Tested
from speedo.run.settings import RunSettings
from speedo.transport.channel import first_line

MOST_TESTERS: Final = 100  # a tester that dies again and again does so for a reason


class TesterActor:
    """Holds the test nets of a run."""

    def __init__(self, settings: RunSettings, log: Path, scratch: Path) -> None:
        capture_stderr(log)
        self._settings, self._scratch = settings, scratch

    def start(self) -> int:
        """Build the nets; returns the process id."""
        reached("tester-starting")
        from speedo.engines.pycaffe import PycaffeEngine
        from speedo.solver import Draws, solver_for_tester

        spec = self._settings.spec
        text = solver_for_tester(
            spec, seed=self._settings.seed, scratch=self._scratch, draws=Draws.NONE
        )
        self._engine = PycaffeEngine(
            text,
            lr_policy=spec.lr_policy,
            folder=spec.folder,
            python_layers=spec.python_layers,
            scratch=self._scratch,
        )
        self._vector = self._engine.layout.zeros()
        return os.getpid()

    def connect(self, redis_url: str, servers: tuple[ServerAddress, ...] = ()) -> None:
        """Open the store, or the servers, from which centers are read; before the first `evaluate`."""
        from speedo.run.open_store import run_store, server_stores
        from speedo.vectors.exchange import PATIENCE_S, Exchange, Stores

        settings = self._settings
        stores = server_stores(servers, settings) or [Stores(run_store(redis_url, settings))]
        self._exchange = Exchange(
            settings.keyspace,
            self._engine.layout,
            stores,
            patience_s=PATIENCE_S if servers else 0.0,
        )

    def evaluate(self, version: int) -> Mapping[str, float]:
        """The metrics of one version of the center."""
        self._exchange.fetch_center(version, self._vector)
        self._engine.load_weights(self._vector)
        return dict(self._engine.evaluate())


class VersionTests:
    """The queue of tests. `new_tester` starts a tester (None: no tests). `tell` gets each result, in any thread."""

    def __init__(
        self, new_tester: Callable[[], Any] | None, tell: Callable[[Tested], None]
    ) -> None:
        self._new_tester, self._tell = new_tester, tell
        self._tester: Any = None
        self._testers = 0
        self._reviving = threading.Lock()  # held for as long as a tester takes to start
        self._asking = threading.RLock()  # an answer may come while another is asked for
        self._waiting: list[Evaluate] = []

    def tester_in_place_of(self, former: Any) -> Any:
        """The present tester; a new one if it is still `former`, which died (None: there was none yet)."""
        with self._reviving:
            if self._tester is former and self._new_tester is not None:
                self._testers += 1
                self._tester = self._new_tester()
            return self._tester

    def end(self) -> None:
        """End the tester, if there is one; another is started for the next test."""
        if self._tester is not None:
            ray.kill(self._tester)

    def ask(self, command: Evaluate) -> None:
        """Queue a test of this version."""
        with self._asking:
            tester = self._tester
            if tester is not None and not self._waiting:
                self._ask(tester, command)
                return
        self._ask_later(command, tester)

    def _ask(self, tester: Any, command: Evaluate) -> None:
        try:
            asked = tester.evaluate.remote(command.version).future()
        except RayError as error:
            self._tell(Tested(command.version, {}, first_line(error)))
            return
        asked.add_done_callback(lambda done: self._done(command, tester, done))

    def _ask_later(self, command: Evaluate, former: Any) -> None:
        """Start a tester, because there is none yet or it died, and repeat the tests that were lost with it."""
        with self._asking:
            self._waiting.append(command)
        threading.Thread(target=self._ask_another, args=(former,), daemon=True).start()

    def _ask_another(self, former: Any) -> None:
        tester, problem = None, "this run has no tester"
        try:
            tester = self.tester_in_place_of(former)
        except (RayError, SpeedoError) as error:
            problem = first_line(error)
        with self._asking:
            waiting, self._waiting = self._waiting, []
            for command in sorted(waiting, key=lambda one: one.version):
                if tester is None:
                    self._tell(Tested(command.version, {}, problem))
                else:
                    self._ask(tester, command)

    def _done(self, command: Evaluate, tester: Any, done: Any) -> None:
        version = command.version
        error = done.exception()
        if error is None:
            self._tell(Tested(version, done.result()))
        elif isinstance(error, RayActorError) and self._testers < MOST_TESTERS:
            self._ask_later(command, tester)
        else:
            cause = error.cause if isinstance(error, RayTaskError) else error
            self._tell(Tested(version, {}, first_line(cause)))
