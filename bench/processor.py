"""What share of a core each part of a run takes, thread by thread.

    python -m bench.processor [--net cifar10_full] [--mode async] [--options='--overlap all']

A run of the bundled net is watched for some seconds once every worker has had a few turns. The kernel counts the time
of each thread (/proc/PID/task/TID/schedstat) and how often it went to sleep. `idle` is what the cores of the machine
had no use for. Prints medians; status 1 if a run failed.
"""

from __future__ import annotations

import shlex
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.support import table
from bench.support.arguments import parser_for, rounds, seconds, whole
from bench.support.figures import MeasureError
from bench.support.machine import heading
from bench.support.processes import MARK, NAMES, child, end_by_signals, last_words, processes
from bench.support.timed import Follower, endless
from tests.support.bundled_nets import SHAPES, Bench

TURNS = 5  # of each worker before the time begins


@dataclass(frozen=True, slots=True)
class Thread:
    """What one thread has used up to now."""

    process: int
    number: int
    role: str
    core_s: float
    sleeps: int


def threads(mark: str) -> list[Thread]:
    """All threads of the run with this mark."""
    found = []
    for role in (*NAMES, "redis"):
        for process in processes(role, mark):
            with suppress(OSError):  # it has just ended
                tasks = Path(f"/proc/{process.pid}/task").iterdir()
                found += [_thread(process.pid, task, role) for task in tasks]
    return found


def _thread(process: int, task: Path, role: str) -> Thread:
    running = int((task / "schedstat").read_text().split()[0]) / 1e9
    status = dict(
        line.split(":\t") for line in (task / "status").read_text().splitlines() if ":\t" in line
    )
    return Thread(process, int(task.name), role, running, int(status["voluntary_ctxt_switches"]))


def shares(
    before: list[Thread], after: list[Thread], lasted_s: float
) -> dict[str, tuple[float, float]]:
    """By part: per cent of a core, and how often a second a thread of it went to sleep.

    Caffe computes in a worker's first thread. Of the master, Ray's loop has the first and the driver the busiest other.
    """
    old = {(one.process, one.number): one for one in before}
    used = []
    for one in after:
        former = old.get((one.process, one.number))
        if former is not None:
            used.append((one, one.core_s - former.core_s, one.sleeps - former.sleeps))
    driver = max(
        (part for part in used if part[0].role == "master" and part[0].number != part[0].process),
        key=lambda part: part[1],
        default=None,
    )
    core, sleeps = Counter[str](), Counter[str]()
    for part in used:
        one, seconds_of, times = part
        first = one.number == one.process
        if one.role == "worker":
            name = "workers: Caffe" if first else "workers: all else"
        elif one.role == "master":
            name = "master: Ray's loop" if first else "master: all else"
            name = "master: the driver" if part is driver else name
        else:
            name = one.role
        core[name] += 100.0 * seconds_of / lasted_s
        sleeps[name] += times / lasted_s
    return {name: (core[name], sleeps[name]) for name in core}


def idle_s() -> float:
    """Seconds that all cores together have been idle up to now."""
    times = psutil.cpu_times()
    return float(times.idle + times.iowait)


def watch(
    net: Bench,
    mode: str,
    workers: int,
    seconds_of: float,
    scratch: Path,
    options: Sequence[str] = (),
) -> tuple[dict[str, tuple[float, float]], float]:
    """The shares of one run, and its results a second."""
    mark, run_dir = scratch.name, scratch / "run"
    command = [*endless(net, mode, workers, run_dir), *options]
    follower = Follower(run_dir)
    with (
        (scratch / "train.log").open("w") as log,
        child(command, log=log, environment={MARK: mark}) as process,
    ):
        try:
            follower.wait(process, lambda: follower.least(workers) >= TURNS)
        except MeasureError as error:
            raise MeasureError(f"{error}: {last_words(log)}") from None
        began, first, before = time.monotonic(), follower.total(), threads(mark)
        idle = idle_s()
        time.sleep(seconds_of)
        idle = idle_s() - idle
        follower.read()
        lasted = time.monotonic() - began
        found = shares(before, threads(mark), lasted)
        found["idle"] = (100.0 * idle / lasted, 0.0)
        rate = (follower.total() - first) / lasted
    return found, rate


def main() -> int:
    parser = parser_for("bench.processor", __doc__, default_rounds=3)
    parser.add_argument("--net", choices=list(SHAPES), default="cifar10_full")
    parser.add_argument("--mode", default="async")
    parser.add_argument("--workers", type=whole, default=2, metavar="N")
    parser.add_argument("--seconds", type=seconds, default=20.0, metavar="S", help="of each run")
    parser.add_argument(
        "--options", type=shlex.split, default=[], metavar="OPTIONS", help="of speedo train"
    )
    asked = parser.parse_args()
    end_by_signals()
    _, say = heading("bench.processor")
    found = []
    with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
        net = Bench.make(asked.net, Path(folder) / asked.net)
        for number in range(asked.rounds):
            with tempfile.TemporaryDirectory(dir=folder) as place:
                try:
                    found.append(
                        watch(
                            net,
                            asked.mode,
                            asked.workers,
                            asked.seconds,
                            Path(place),
                            asked.options,
                        )
                    )
                except MeasureError as error:
                    print(f"failed: {error}", file=sys.stderr)
                    return 1
            say(f"run {number + 1} of {asked.rounds}: {found[-1][1]:.1f} results/s")
    names = sorted({name for one, _ in found for name in one})
    medians = {
        name: [
            statistics.median(one.get(name, (0.0, 0.0))[at] for one, _ in found) for at in (0, 1)
        ]
        for name in names
    }
    lines = [["", "% of a core", "sleeps a second"]]
    for name in sorted(names, key=lambda name: -medians[name][0]):
        lines.append([name, f"{medians[name][0]:.2f}", f"{medians[name][1]:.0f}"])
    write = table.markdown if asked.markdown else table.text
    rate = statistics.median(rate for _, rate in found)
    print(
        f"\n{asked.net}, {asked.mode}, {asked.workers} workers, {rate:.1f} results/s: medians of "
        f"{rounds(asked.rounds)} of {asked.seconds:.0f} s\n\n{write(lines)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
