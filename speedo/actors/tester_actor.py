"""Tests versions of the center while training continues: the tester actors, and the queue of versions to test."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayError

from speedo.actors.ray_errors import raised_by, why
from speedo.engines.evaluation import Part, PartOfTest, combined
from speedo.engines.native_failures import capture_stderr
from speedo.exchange.channel import first_line
from speedo.master.slots import ServerAddress
from speedo.messages import Evaluate, Tested, Testing
from speedo.run.settings import RunSettings
from speedo.system.failpoints import reached

PROGRESS_S: Final = 1.0  # between two reports of a tester
MOST_TESTERS: Final = 100  # a tester that dies again and again does so for a reason


class TesterActor:
    """Holds the test nets of a run, and computes one share of each test.

    `master` hears of the batches that are done, as `VersionTests.passed`.
    """

    def __init__(
        self, settings: RunSettings, share: PartOfTest, log: Path, scratch: Path, master: Any
    ) -> None:
        capture_stderr(log)
        self._share, self._master = share, master
        self._settings, self._scratch = settings, scratch

    def start(self) -> int:
        """Build the nets; returns the process id."""
        reached("tester-starting")
        from speedo.engines.make import make_engine, prepare_process
        from speedo.engines.solver import Draws, solver_for_tester

        spec = self._settings.solver
        prepare_process(self._settings.engine)
        text = solver_for_tester(
            spec, seed=self._settings.seed, scratch=self._scratch, draws=Draws.NONE
        )
        self._engine = make_engine(
            self._settings.engine.of_tester(self._share.index),
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
        from speedo.exchange.served_vectors import PATIENCE_S, Exchange, Stores
        from speedo.run.open_store import run_store, server_stores

        settings = self._settings
        stores = server_stores(servers, settings) or [Stores(run_store(redis_url, settings))]
        self._exchange = Exchange(
            settings.keyspace,
            self._engine.layout,
            stores,
            patience_s=PATIENCE_S if servers else 0.0,
        )

    def evaluate(self, version: int) -> Part:
        """Its share of the test of one version of the center."""
        self._exchange.fetch_center(version, self._vector)
        self._engine.load_weights(self._vector)
        done, said, batches = 0, time.monotonic(), sum(self._settings.solver.test_iter)

        def passed(samples: int) -> None:
            nonlocal done, said
            done += 1
            if time.monotonic() >= said + PROGRESS_S:
                said = time.monotonic()
                self._master.testing.remote(self._share.index, version, done, batches)

        return self._engine.evaluate_share(self._share, passed)


@dataclass(frozen=True, slots=True)
class PartTested:
    """What a tester answers: its share of the test of a version, or the `problem` that kept it from it."""

    version: int
    part: Part
    problem: str = ""


class VersionTests:
    """The tests of a run, each shared by all testers, in the order in which they are asked for.

    `new_tester` starts tester number k of `testers` (None: no tests). `tell` gets each result, and how far a
    test is, in any thread.
    """

    def __init__(
        self,
        new_tester: Callable[[PartOfTest], Any] | None,
        tell: Callable[[Tested | Testing], None],
        testers: int = 1,
    ) -> None:
        self._tell = tell
        self._parts: dict[int, dict[int, Part]] = {}  # by version, by tester
        self._done: dict[int, dict[int, int]] = {}  # batches, likewise
        self._telling = threading.Lock()
        self.testers = [
            ShareTests(
                None if new_tester is None else partial(new_tester, PartOfTest(index, testers)),
                partial(self._on_part, index),
            )
            for index in range(testers)
        ]

    def ask(self, command: Evaluate) -> None:
        """Queue a test of this version."""
        with self._telling:
            self._parts[command.version], self._done[command.version] = {}, {}
        for tester in self.testers:
            tester.ask(command)

    def passed(self, index: int, version: int, done: int, batches: int) -> None:
        """Tester `index` has done this many of the batches of this test, of which there are `batches` for all."""
        with self._telling:
            own = self._done.get(version)
            if own is None:
                return  # it is over
            own[index] = done
            total = sum(own.values())
        self._tell(Testing(version, total, batches))

    def start(self) -> None:
        """Start all testers, and return once they run. Raises `EngineError`, `StoreError`."""
        with ThreadPoolExecutor(len(self.testers)) as pool:
            for _ in pool.map(lambda tester: tester.tester_in_place_of(None), self.testers):
                pass

    def end(self) -> None:
        """End the testers, if there are any; others are started for the next test."""
        for tester in self.testers:
            tester.end()

    def _on_part(self, index: int, found: PartTested) -> None:
        """A test is done with its last part, or with its first problem."""
        version = found.version
        with self._telling:
            parts = self._parts.get(version)
            if parts is None:
                return  # its problem was reported
            parts[index] = found.part  # one that was asked for before, of this version, is as good
            if not found.problem and len(parts) < len(self.testers):
                return
            del self._parts[version], self._done[version]
        if found.problem:
            return self._tell(Tested(version, {}, found.problem))
        try:
            metrics = combined([parts[one] for one in sorted(parts)])
        except Exception as error:  # nobody would hear of it in this thread
            return self._tell(Tested(version, {}, first_line(error)))
        none = "" if metrics else "there is no test net with an output: add one and its test_iter"
        self._tell(Tested(version, metrics, none))


class ShareTests:
    """The queue of one tester. `new_tester` starts it, and another after its death. `tell` gets each answer."""

    def __init__(
        self, new_tester: Callable[[], Any] | None, tell: Callable[[PartTested], None]
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
            if self._waiting:  # who takes those takes this one, too
                self._waiting.append(command)
                return
            if self._tester is not None:
                self._ask(self._tester, command)
                return
        self._ask_later(command, None)

    def _ask(self, tester: Any, command: Evaluate) -> None:
        try:
            asked = tester.evaluate.remote(command.version).future()
        except RayError as error:
            self._tell(PartTested(command.version, (), why(error)))
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
        except Exception as error:  # the tests that wait must be answered
            problem = first_line(error)
        with self._asking:
            waiting, self._waiting = self._waiting, []
            for command in sorted(waiting, key=lambda one: one.version):
                if tester is None:
                    self._tell(PartTested(command.version, (), problem))
                else:
                    self._ask(tester, command)

    def _done(self, command: Evaluate, tester: Any, done: Any) -> None:
        version = command.version
        error = done.exception()
        if error is None:
            self._tell(PartTested(version, done.result()))
        elif raised_by(error) is None and self._testers < MOST_TESTERS:
            self._ask_later(command, tester)
        else:
            self._tell(PartTested(version, (), why(error)))
