"""Seconds from `speedo train` to the first merge, and memory per worker.

    python -m bench.startup [--nets lenet alexnet] [--rounds 5] [--touch GB] [--options "..."]

The files must have been read before, so a first start is not counted. Memory is that of a worker after a few turns,
beside plain Caffe with the same net after as many steps: PSS, in which what processes share is divided among them, and
RSS. The bound is plain Caffe and three models and 150 MB. A large model's start waits for memory, which a virtual
machine may get slowly from its host: how fast is printed, too, and `--touch` has so much of it used before each start.
Prints medians; status 1 if a measurement failed.
"""

from __future__ import annotations

import mmap
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.support import table
from bench.support.arguments import parser_for, rounds, whole
from bench.support.figures import MeasureError
from bench.support.machine import Clock, heading, status_of
from bench.support.processes import MARK, child, end_by_signals, last_words, processes
from bench.support.runs import CTRL_C, START_S, plain_caffe, plain_terms
from bench.support.timed import Follower, endless
from tests.support.bundled_nets import SHAPES, Bench

TURNS = 5  # of each worker before its memory is taken
POLL_S = 0.005
TOUCHED_GB = 4  # to see how fast memory comes
MODELS, EXTRA_MB = 3, 150.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one process, MB."""

    pss: float
    rss: float

    @classmethod
    def of(cls, process: psutil.Process) -> Memory:
        seen = process.memory_full_info()
        return cls(seen.pss / 1e6, seen.rss / 1e6)


@dataclass(frozen=True, slots=True)
class Started:
    """One start: seconds to the first merge, the worker with the most memory, and the master."""

    seconds: float
    worker: Memory
    master: Memory


def bound_mb(plain: float, model_bytes: int) -> float:
    """What a worker may take where plain Caffe takes `plain` MB."""
    return plain + MODELS * model_bytes / 1e6 + EXTRA_MB


def touch(gigabytes: int) -> float:
    """Use so much memory and give it back; GB/s at which it came."""
    if gigabytes * 1e9 > 0.8 * psutil.virtual_memory().available:
        raise MeasureError(f"{gigabytes} GB of memory to touch are not free")
    began = time.monotonic()
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        with mmap.mmap(-1, gigabytes * 10**9, flags):
            return gigabytes / (time.monotonic() - began)
    except OSError as error:
        raise MeasureError(f"{gigabytes} GB of memory: {error.strerror}") from None


def start(net: Bench, mode: str, workers: int, options: Sequence[str], scratch: Path) -> Started:
    """Start a run, look at it once every worker has had a few turns, and end it."""
    mark, run_dir = os.urandom(8).hex(), scratch / "run"
    command = [*endless(net, mode, workers, run_dir), *options]
    follower = Follower(run_dir)
    began = time.monotonic()
    with (
        (scratch / "train.log").open("w") as log,
        child(command, log=log, environment={MARK: mark}) as process,
    ):
        try:
            follower.wait(process, lambda: follower.total() > 0, poll_s=POLL_S)
            first = time.monotonic() - began
            follower.wait(process, lambda: follower.least(workers) >= TURNS, poll_s=POLL_S)
            members = [Memory.of(one) for one in processes("worker", mark)]
            masters = [Memory.of(one) for one in processes("master", mark)]
            process.send_signal(signal.SIGINT)
            if process.wait(START_S) != CTRL_C:
                raise MeasureError(f"status {process.returncode}")
        except (MeasureError, psutil.Error, subprocess.TimeoutExpired) as error:
            raise MeasureError(f"{error}: {last_words(log)}") from None
    if not members or not masters:
        raise MeasureError("the run's processes were not found")
    return Started(first, max(members, key=lambda one: one.pss), masters[0])


def plain_memory(net: Bench, scratch: Path) -> Memory:
    """Of plain Caffe that has taken three steps with this net."""
    with (scratch / "plain.log").open("w") as log:
        command = plain_caffe(net, net.batch, 1)
        with child(command, log=log, talk=True, environment=plain_terms()) as process:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise MeasureError(f"plain Caffe did not start: {last_words(log)}")
            return Memory.of(psutil.Process(process.pid))


# ---------------------------------------------------------------- the program


def report(
    name: str, model_bytes: int, plain: Sequence[Memory], started: Sequence[Started]
) -> list[str]:
    """The cells of one net."""
    seconds = [one.seconds for one in started]
    workers = [one.worker for one in started]
    own, worker = _medians(plain), _medians(workers)
    bounds = [bound_mb(one, model_bytes) for one in own]
    return [
        name,
        f"{statistics.median(seconds):.2f}",
        f"{min(seconds):.2f} to {max(seconds):.2f}",
        f"{model_bytes / 1e6:.1f}",
        *(f"{one[0]:.0f} ({one[1]:.0f})" for one in (own, worker, bounds)),
        f"{worker[0] / bounds[0]:.0%} ({worker[1] / bounds[1]:.0%})",
        f"{statistics.median(one.master.pss for one in started):.0f}",
    ]


def _medians(seen: Sequence[Memory]) -> tuple[float, float]:
    """PSS and RSS."""
    return statistics.median(one.pss for one in seen), statistics.median(one.rss for one in seen)


HEADING = [
    "", "s to the first merge", "least to most", "model MB", "plain Caffe MB", "worker MB", "bound MB",
    "of the bound", "master MB",
]  # fmt: skip


def model_bytes_of(net: Bench, scratch: Path) -> int:
    """Of the parameters, as the first run of a net tells them."""
    told = (scratch / "train.log").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"([\d,]+) parameters in ", told)
    if found is None:
        raise MeasureError(f"{net.name}: the run did not tell its parameters")
    return 4 * int(found[1].replace(",", ""))


def measure(
    net: Bench,
    mode: str,
    workers: int,
    options: Sequence[str],
    repeats: int,
    touched: int,
    folder: Path,
    say: Clock,
) -> list[str]:
    """All starts of one net, the first of which is not counted."""
    plain: list[Memory] = []
    started: list[Started] = []
    model_bytes = 0
    for number in range(repeats + 1):
        if touched:
            touch(touched)
        with tempfile.TemporaryDirectory(dir=folder) as place:
            scratch = Path(place)
            one = start(net, mode, workers, options, scratch)
            model_bytes = model_bytes_of(net, scratch)
            own = plain_memory(net, scratch)
        say(
            f"{net.name}, start {number} of {repeats}: {one.seconds:.2f} s, worker {one.worker.pss:.0f} MB"
        )
        if number:
            plain.append(own)
            started.append(one)
    return report(net.name, model_bytes, plain, started)


def main() -> int:
    parser = parser_for("bench.startup", __doc__)
    parser.add_argument("--nets", nargs="+", choices=list(SHAPES), default=["lenet", "alexnet"])
    parser.add_argument("--mode", default="sync")
    parser.add_argument("--workers", type=whole, default=2, metavar="N")
    parser.add_argument("--touch", type=whole, default=0, metavar="GB", help="before each start")
    parser.add_argument("--options", default="", help="more options of speedo train")
    asked = parser.parse_args()
    end_by_signals()
    _, say = heading("bench.startup")
    lines, failures = [HEADING], []
    with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
        for name in dict.fromkeys(asked.nets):
            net = Bench.make(name, Path(folder) / name)
            options = shlex.split(asked.options)
            try:
                how = asked.mode, asked.workers, options, asked.rounds, asked.touch
                lines.append(measure(net, *how, net.folder, say))
            except MeasureError as error:
                failures.append(f"{name}: {error}")
    write = table.markdown if asked.markdown else table.text
    medians = f"{asked.mode}, {asked.workers} workers: medians of {rounds(asked.rounds)}"
    print(f"\n{medians}; memory is PSS, and RSS in brackets\n\n{write(lines)}")
    try:
        print(f"\nMemory that nobody had came at {touch(TOUCHED_GB):.2f} GB/s.")
    except MeasureError as error:
        failures.append(str(error))
    return status_of(failures)


if __name__ == "__main__":
    sys.exit(main())
