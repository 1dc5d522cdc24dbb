"""The commands of a run on several hosts, each started again once it has ended, as systemd or a cloud would."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.support.figures import MeasureError
from bench.support.processes import FAREWELL_S, MARK
from speedo.engines.solver.bundled import bundled_solver
from speedo.run_dir.directory import METRICS
from tests.support.network import Host, network
from tests.support.store_server import OwnRedis

SCRIPT: Final = Path(__file__).with_name("own_loop_script.py")
AGAIN_S: Final = 1.0  # until what has ended is started again
KNOWN_S: Final = 5.0  # until all hosts know a standby that follows
END_S: Final = 120.0
LEAVE: Final = ("--leave-after", "20", "--grace", "10")  # together what a notice gives
FOR_EVER: Final = (
    *("--restarts", "1000000", "--restarts", "master_restarts=1000000"),
    *("--timeout", "300", "--max-iter", "100000000"),
)
# An epoch has each record once, whoever dies.
SCRIPTS: Final = ("--own", "--local-steps", "10")
SOLVER: Final[tuple[str, ...]] = ("--test-interval", "0", "--device", "cpu", "--data-share", "once")
REST: Final = """
layer {{ name: "rest" type: "Python" bottom: "label" include {{ phase: TRAIN }}
  python_param {{ module: "rested_step" layer: "Rest" param_str: "{seconds}" }} }}
"""
Process = subprocess.Popen[str]


@dataclass
class Place:
    """A host's command with its part of the workers."""

    host: Host
    workers: int
    process: Process
    due: float | None = None  # when it is started again


@dataclass
class Standby:
    """The command that takes the run over; `since` is when it was first seen to follow."""

    host: Host
    run_dir: Path
    process: Process
    since: float | None = None


class Cluster:
    """One run: the present master's command on `chief`, and its directory; a command of workers on each of `hosts`.

    With a `redis` of its own machine there is a standby. `log` has what the commands print.
    """

    def __init__(
        self,
        asked: argparse.Namespace,
        mode: str,
        seed: int,
        folder: Path,
        hosts: list[Host],
        redis: OwnRedis | None,
        mark: str,
    ) -> None:
        self.hosts, self.redis, self.chief = hosts, redis, hosts[0]
        self._folder, self._mark = folder, mark
        self._script = [
            sys.executable,
            str(SCRIPT),
            "--seconds",
            "1e9",
            "--step-ms",
            str(asked.step_ms),
        ]
        if not asked.script:
            self._script.clear()
        self.log, self.run_dir = folder / "commands.log", folder / "run"
        self._standby: Standby | None = None
        self._standbys, self._due = 0, 0.0
        self._all: list[Process] = []
        if asked.script:
            trained = SCRIPTS[: 1 if mode == "sync" else 3]
        else:
            trained = (str(lenet(folder, asked.step_ms / 1000)), *SOLVER)
        self.master = self._start(
            self.chief, "master", *trained, "--host", self.chief.address, "--mode", mode,
            "--workers", str(asked.workers), "--seed", str(seed), "--run-dir", str(self.run_dir),
            "--checkpoint-interval", str(asked.checkpoint_interval), *FOR_EVER,
            *(redis.options if redis is not None else ("--servers", asked.servers)),
        )  # fmt: skip
        self.places = []
        for number, host in enumerate(hosts):
            part = asked.workers // asked.hosts + (number < asked.workers % asked.hosts)
            self.places.append(Place(host, part, self._start_workers(host, part)))

    @property
    def standby_host(self) -> str:
        """Its name; empty if there is none."""
        return "" if self._standby is None else self._standby.host.name

    def can_lose_the_command(self, now: float) -> bool:
        """Whether the run goes on then: from a checkpoint, or with a standby that all hosts know."""
        if self.redis is None:
            return self.master.poll() is None
        since = None if self._standby is None else self._standby.since
        return since is not None and now >= since + KNOWN_S

    def replace(self, place: Place) -> Process:
        """Tell a host's command to end, beside another one in its place; the former."""
        old, place.process = place.process, self._start_workers(place.host, place.workers)
        old.terminate()
        return old

    def look(self, now: float) -> bool:
        """Start again what has ended; whether the master is another command now, perhaps in another directory."""
        if self.redis is not None and not self.redis.runs():
            self.redis.start()
        for place in self.places:
            if place.process.poll():  # 0: the run is over
                if place.due is None:
                    place.due = now + AGAIN_S
                elif now >= place.due:
                    place.process, place.due = self._start_workers(place.host, place.workers), None
        if self.redis is not None:
            self._look_at_standby(now)
        if self.master.poll() is None:
            return False
        self._succeed(now)
        return True

    def end(self) -> None:
        """As Ctrl-C does; the run's directory has its result then."""
        self.master.send_signal(signal.SIGINT)
        self.master.wait(END_S)

    def close(self) -> None:
        """Ask all to end that are there."""
        for process in self._all:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + FAREWELL_S
        for process in self._all:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))

    def _look_at_standby(self, now: float) -> None:
        standby = self._standby
        if standby is not None and standby.process.poll() is not None:
            self._standby, self._due = None, now + AGAIN_S
        elif standby is not None:
            if standby.since is None and (standby.run_dir / METRICS).exists():
                standby.since = now
        elif now >= self._due and self.master.poll() is None:
            self._standbys += 1
            host = next(one for one in self.hosts if one is not self.chief)
            run_dir = self._folder / f"standby-{self._standbys}"
            words = ("--standby", self.chief.address, "--run-dir", str(run_dir))
            process = self._start(host, "master", *words, "--timeout", "300")
            self._standby = Standby(host, run_dir, process)

    def _succeed(self, now: float) -> None:
        """The master's command is gone: its standby has the run, or the same directory gets another command."""
        standby, self._standby = self._standby, None
        if standby is not None and standby.since is not None:
            self.master, self.chief, self.run_dir = standby.process, standby.host, standby.run_dir
            self._due = now + AGAIN_S
        elif self.redis is None and self.master.returncode == -signal.SIGKILL:
            self.master = self._start(self.chief, "master", "--resume", str(self.run_dir))
        else:
            raise MeasureError(f"the run ended with {self.master.returncode}; see {self.log}")

    def _start_workers(self, host: Host, count: int) -> Process:
        script = ("--", *self._script) if self._script else ()
        return self._start(
            host, "worker", "--master", self.chief.address, "--workers", str(count),
            "--timeout", "60", *LEAVE, *script,
        )  # fmt: skip

    def _start(self, host: Host, *words: str) -> Process:
        runtime = self._folder / f"runtime-{host.address.rpartition('.')[2]}"
        environment = {
            MARK: self._mark,
            "SPEEDO_TOKEN_FILE": str(self._folder / "token"),
            "SPEEDO_RUNTIME_DIR": str(runtime),
            **({} if self.redis is None else self.redis.environment),
        }
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [*host.inside, sys.executable, "-m", "speedo", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**os.environ, **environment},
            )
        self._all = [one for one in self._all if one.poll() is None] + [process]
        return process


def lenet(folder: Path, step_s: float) -> Path:
    """The solver file of the bundled LeNet, each of whose steps takes so long at least."""
    bundled = bundled_solver("lenet")
    if not step_s:
        return bundled
    net = bundled.with_name("train_test.prototxt").read_text() + REST.format(seconds=step_s)
    (folder / "train_test.prototxt").write_text(net)
    for file in (bundled, Path(__file__).with_name("rested_step.py")):
        shutil.copy(file, folder)
    return folder / bundled.name


@contextmanager
def cluster(
    asked: argparse.Namespace, mode: str, seed: int, folder: Path, mark: str
) -> Iterator[Cluster]:
    """A run that trains until it is told to end; all of it is gone afterwards."""
    with ExitStack() as stack:
        hosts = stack.enter_context(network(asked.hosts + asked.standby))
        redis = None
        if asked.standby:
            third = hosts.pop()
            redis = stack.enter_context(OwnRedis(third.address, third.inside))
        found = Cluster(asked, mode, seed, folder, hosts, redis, mark)
        stack.callback(found.close)
        yield found
