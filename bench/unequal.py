"""Sync where one worker has a tenth of the speed of the others: images/s against the sum of what all can do.

    python -m bench.unequal [--nets lenet cifar10_full] [--workers 4] [--share 0.1] [--seconds 60] [--rounds 3]

The last worker is stopped and continued fifty times a second, so that it computes for this share of the time. `free`
are as many processes of plain Caffe that train side by side, each alone, on a worker's equal share of the batch, with
the last one throttled likewise. `speed` and `even` are `--batch-division`; the images/s are those after the last
division, which `divided` shows. Medians, and ratios taken within a round.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.support import table
from bench.support.arguments import parser_for, rounds, seconds, whole
from bench.support.figures import Measured, MeasureError, median_rate, paired_ratio
from bench.support.machine import heading, status_of
from bench.support.processes import end_by_signals
from bench.support.runs import START_S, free_running, plain_caffe, train
from speedo.run_dir.directory import METRICS
from speedo.run_dir.events import BatchDivided, ResultMerged, read_events
from tests.support import throttled
from tests.support.bundled_nets import Bench
from tests.support.throttled import throttle

NETS: Final = ("lenet", "cifar10_full")
THROTTLED: Final = Path(throttled.__file__)
MANY: Final = 10_000_000  # iterations: the seconds end the run
SETTLES_S: Final = 2.0  # after a division the workers build their nets


def free(net: Bench, workers: int, share: float, duration: float, scratch: Path) -> Measured:
    """Plain processes, the last one throttled."""
    size = net.batch // workers
    commands = [plain_caffe(net, size, duration) for _ in range(workers)]
    commands[-1] = [sys.executable, str(THROTTLED), str(share), *commands[-1]]
    return free_running(commands, [size] * workers, duration, scratch)


def throttling(worker: int, share: float) -> Callable[[subprocess.Popen[str], Path], None]:
    """For `train`: throttles this worker from its first turn to the end of the run."""

    def watch(process: subprocess.Popen[str], run_dir: Path) -> None:
        over = threading.Event()
        one = threading.Thread(target=throttle, args=(_process_of(run_dir, worker), share, over))
        one.start()
        try:
            process.wait()
        finally:
            over.set()
            one.join()

    return watch


def _process_of(run_dir: Path, worker: int) -> int:
    """The process id of this worker, once it has joined."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        log = run_dir / METRICS
        for line in log.read_text().splitlines()[:-1] if log.exists() else ():
            values = json.loads(line)
            if values["event"] == "joined" and values["worker"] == worker:
                return int(values["process"])
        time.sleep(0.1)
    raise MeasureError(f"worker {worker} did not join")


def settled(run_dir: Path) -> tuple[float, list[str]]:
    """Images/s after the last division, or in the second half if there was none; the reasons of all divisions."""
    merged, divisions = list[tuple[float, int]](), list[BatchDivided]()
    for event in read_events(run_dir):
        if isinstance(event, BatchDivided):
            divisions.append(event)
        elif isinstance(event, ResultMerged):
            merged.append((event.seconds, event.samples))
    if not merged:
        raise MeasureError("nothing was merged")
    first, last = merged[0][0], merged[-1][0]
    begin = divisions[-1].seconds + SETTLES_S if divisions else (first + last) / 2
    inside = [(at, samples) for at, samples in merged if at >= begin]
    if len(inside) < 2 or inside[-1][0] <= inside[0][0]:
        raise MeasureError("the run ended before its division had settled: more --seconds")
    images = sum(samples for at, samples in inside if at > inside[0][0])
    return images / (inside[-1][0] - inside[0][0]), [one.reason for one in divisions]


def main() -> int:
    """Status 1 if a measurement failed."""
    parser = parser_for("bench.unequal", __doc__, default_rounds=3)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--workers", type=whole, default=4, metavar="N")
    parser.add_argument("--share", type=float, default=0.1, metavar="PART", help="of the time")
    parser.add_argument("--seconds", type=seconds, default=60.0, help="of a run")
    asked = parser.parse_args()
    if not 0.01 <= asked.share <= 1 or asked.workers < 2:
        parser.error("use --share 0.01 to 1, and 2 or more --workers")
    end_by_signals()
    _, say = heading("bench.unequal")
    failures, lines = [], [["", "free", "speed", "even", "speed / free", "divided"]]
    for name in asked.nets:
        found, said = list[dict[str, Measured]](), ""
        for number in range(asked.rounds):
            with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
                net, round_ = Bench.make(name, Path(folder) / name), dict[str, Measured]()
                found.append(round_)
                try:
                    say(f"{name}, round {number + 1}: free")
                    duration = asked.seconds / 4
                    round_["free"] = free(net, asked.workers, asked.share, duration, Path(folder))
                    for way in ("speed", "even"):
                        say(f"{name}, round {number + 1}: {way}")
                        scratch = Path(folder) / way
                        scratch.mkdir()
                        options = ["--batch-division", way, "--max-seconds", str(asked.seconds)]
                        train(
                            net, "sync", asked.workers, MANY, options, scratch,
                            seconds=asked.seconds, watch=throttling(asked.workers - 1, asked.share),
                        )  # fmt: skip
                        rate, reasons = settled(scratch / "run")
                        said = reasons[-1] if reasons else said
                        round_[way] = Measured(rate, {})
                except MeasureError as error:
                    failures.append(f"{name}: {error}")
        ratio = paired_ratio(found, "speed", "free")
        rates = [median_rate(found, one) for one in ("free", "speed", "even")]
        lines.append([
            f"{name}, batch {net.batch}", *("" if one is None else f"{one:,.0f}" for one in rates),
            "" if ratio is None else f"{ratio.median:.3f} ({ratio.least:.3f} to {ratio.most:.3f})",
            said.partition(": ")[2].partition(";")[0],
        ])  # fmt: skip
    write = table.markdown if asked.markdown else table.text
    print(
        f"\n{asked.workers} workers, the last at {asked.share:g}; {rounds(asked.rounds)}\n\n{write(lines)}"
    )
    return status_of(failures)


if __name__ == "__main__":
    sys.exit(main())
