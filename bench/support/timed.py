"""Runs that end after some seconds of training instead of a number of iterations, and are watched meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from bench.support.figures import Measured, MeasureError
from bench.support.processes import MARK, processes
from bench.support.runs import START_S, train
from speedo.run_dir.events import (
    LogFollower,
    ResultDropped,
    ResultMerged,
    RunResumed,
    WorkerJoined,
    WorkerLeft,
)
from tests.support.bundled_nets import Bench

FOREVER = 100_000_000  # iterations: the run is ended by Ctrl-C
FIRST_TURNS, LEAST_TURNS = 3, 12  # of each worker: before the time begins, and in all
POLL_S = 0.02


def endless(net: Bench, mode: str, workers: int, run_dir: Path) -> list[str]:
    """The command of a run without tests, with the whole batch for each worker, that others end."""
    return [
        sys.executable, "-m", "speedo", "train", str(net.solver(net.batch)), "--device", "cpu",
        "--mode", mode, "--workers", str(workers), "--whole-batch", "--max-iter", str(FOREVER),
        "--test-interval", "0", "--seed", "1", "--run-dir", str(run_dir),
    ]  # fmt: skip


class Follower:
    """Reads the log of a run that goes on: results by worker, and the last merge's time, iteration and samples.

    Samples that a resumption has undone do not count. `here` are the workers in the run, `resumptions` how many there
    were.
    """

    def __init__(self, run_dir: Path) -> None:
        self._log = LogFollower(run_dir)
        self.results: Counter[int] = Counter()
        self.here = set[int]()
        self.seconds, self.iteration, self.samples, self.resumptions = 0.0, 0, 0, 0

    def read(self) -> None:
        """Take in what was written since."""
        while found := self._log.new():
            for one in found:
                if isinstance(one, ResultMerged | ResultDropped):
                    self.results[one.worker] += 1
                if isinstance(one, RunResumed):
                    self.samples = one.samples
                    self.resumptions += 1
                    self.here.clear()
                if isinstance(one, WorkerJoined):
                    self.here.add(one.worker)
                if isinstance(one, WorkerLeft):
                    self.here.discard(one.worker)
                if isinstance(one, ResultMerged):
                    self.seconds, self.iteration = one.seconds, one.iteration
                    self.samples += one.samples

    def least(self, workers: int) -> int:
        """Results of the worker with the fewest."""
        return min(self.results.values()) if len(self.results) == workers else 0

    def total(self) -> int:
        """Results of all workers."""
        return sum(self.results.values())

    def wait(
        self,
        process: subprocess.Popen[str],
        over: Callable[[], bool],
        limit_s: float = START_S,
        poll_s: float = POLL_S,
    ) -> None:
        """Read until it is `over`; raises `MeasureError` if the run ends before, or is too slow by far."""
        deadline = time.monotonic() + limit_s
        while True:
            self.read()
            if over():
                return
            if process.poll() is not None:
                raise MeasureError(f"the run ended by itself with status {process.returncode}")
            if time.monotonic() > deadline:
                raise MeasureError(f"too few turns within {limit_s:.0f} s")
            time.sleep(poll_s)


Sample = Callable[[Follower], None]


def follow(
    process: subprocess.Popen[str],
    run_dir: Path,
    workers: int,
    seconds: float,
    sample: Sample = lambda follower: None,
) -> None:
    """Let a run train for `seconds` and end it as Ctrl-C does; `sample` is called at both ends of that time.

    Raises `MeasureError` if it ends by itself, or is too slow by far.
    """
    follower = Follower(run_dir)
    follower.wait(process, lambda: follower.least(workers) >= FIRST_TURNS)
    sample(follower)
    began = time.monotonic()
    follower.wait(
        process,
        lambda: time.monotonic() >= began + seconds and follower.least(workers) >= LEAST_TURNS,
        START_S + 20 * seconds,
    )
    sample(follower)
    process.send_signal(signal.SIGINT)


class Shares:
    """CPU time over wall time of the processes of a run, by kind, between two samples."""

    def __init__(self, mark: str, kinds: Sequence[str]) -> None:
        self._mark, self._kinds = mark, kinds
        self._found: dict[str, list[psutil.Process]] = {}
        self._seen: list[tuple[float, dict[str, float]]] = []

    def sample(self, follower: Follower) -> None:
        if not self._found:
            self._found = {kind: processes(kind, self._mark) for kind in self._kinds}
        used = {
            kind: sum(sum(one.cpu_times()[:2]) for one in found)
            for kind, found in self._found.items()
        }
        self._seen.append((time.monotonic(), used))

    def of(self, kind: str) -> float:
        """Of one core; 1.5 is a core and a half."""
        (begin, before), (end, after) = self._seen[0], self._seen[-1]
        return (after[kind] - before[kind]) / (end - begin)


def train_for(
    net: Bench,
    mode: str,
    workers: int,
    options: Sequence[str],
    scratch: Path,
    seconds: float,
    kinds: Sequence[str] = (),
) -> tuple[Measured, dict[str, float]]:
    """A run of `speedo train`, and the share of a core that each of `kinds` of processes took (bench.soak.NAMES)."""
    mark = os.urandom(8).hex()
    shares = Shares(mark, kinds)

    def watch(process: subprocess.Popen[str], run_dir: Path) -> None:
        follow(process, run_dir, workers, seconds, shares.sample)

    measured = train(
        net, mode, workers, FOREVER, options, scratch,
        seconds=seconds, environment={MARK: mark}, watch=watch,
    )  # fmt: skip
    return measured, {kind: shares.of(kind) for kind in kinds}
