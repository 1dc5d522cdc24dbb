"""Sync where one worker has a tenth of the speed of the others: images/s against the sum of what all can do.

    python -m bench.unequal [--nets cifar10_full] [--ways speed even] [--workers 4] [--share 0.1] [--others 0.45]
                            [--seconds 80] [--rounds 3] [--script]

With `--script` a LeNet in PyTorch is trained instead, by `bench/support/own_loop_script.py`, with 64 records for each
worker.

A worker is stopped and continued two hundred times a second, so that it computes for a part of the time: the last one
for `--share` of what the others do, and these for `--others`. Four at 0.45 leave two cores time for the rest of the
run, so that each has the speed of a machine of its own; at 1 they compete, and a share of them is no speed.
`free` are as many processes of plain Caffe, or of the script, that train side by side, each alone, throttled likewise:
before a run on equal shares of the batch (`equal`), and after it on those that the run came to (`shares`), for a step
is not proportional to its batch; who has no records has no process then. `speed` and `even` are `batch_division`.
`settled` are the images/s after the last division, which `divided` shows, with the seconds of all; `whole` those from
the first merge to the last. Medians, and ratios taken within a round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from bench.support import table
from bench.support.arguments import parser_for, rounds, seconds, whole
from bench.support.figures import Measured, MeasureError, Ratio, median_rate, paired_ratio
from bench.support.machine import heading, status_of
from bench.support.processes import child, end_by_signals
from bench.support.runs import ONE_THREAD, START_S, cores, free_running, plain_caffe, train
from speedo.run_dir.directory import METRICS
from speedo.run_dir.events import BatchDivided, ResultMerged, read_events
from tests.support.bundled_nets import Bench
from tests.support.throttled import throttle

NETS: Final = ("cifar10_full", "lenet")
SCRIPT: Final = Path(__file__).with_name("support") / "own_loop_script.py"
BATCH: Final = 64  # of a script's worker
RATES: Final = ("equal", "shares", "settled", "whole")
RATIOS: Final = (("settled", "equal"), ("settled", "shares"), ("whole", "equal"))
WAYS: Final = ("speed", "even")
MANY: Final = 10_000_000  # iterations: the seconds end the run
SETTLES_S: Final = 2.0  # after a division the workers build their nets
FREE_S: Final = 20.0


@contextmanager
def throttled(processes: Sequence[int], shares: Sequence[float]) -> Iterator[None]:
    """Inside the context each of the processes computes for its share of the time."""
    over, slow = threading.Event(), zip(processes, shares, strict=True)
    wanted = {process: share for process, share in slow if share < 1}
    thread = threading.Thread(target=throttle, args=(wanted, over))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def free(net: Bench, sizes: Sequence[int], shares: Sequence[float], scratch: Path) -> Measured:
    """Plain processes, with batches of these sizes."""
    with ExitStack() as stack:
        return free_running(
            [plain_caffe(net, size, FREE_S) for size in sizes],
            sizes,
            FREE_S,
            scratch,
            ready=lambda processes: stack.enter_context(throttled(processes, shares)),
        )


def free_scripts(sizes: Sequence[int], shares: Sequence[float]) -> Measured:
    """Likewise, of the script."""
    with ExitStack() as stack:
        scripts = list[subprocess.Popen[str]]()
        for size in sizes:
            words = ["--seconds", str(FREE_S), "--batch", str(size)]
            begun = subprocess.Popen(
                [sys.executable, str(SCRIPT), *words], stdout=subprocess.PIPE, text=True,
                env={**os.environ, **ONE_THREAD},
            )  # fmt: skip
            scripts.append(stack.enter_context(begun))
            stack.callback(begun.kill)
        for one in scripts:
            assert one.stdout is not None
            one.stdout.readline()  # that it has begun
        stack.enter_context(throttled([one.pid for one in scripts], shares))
        said = [one.communicate(timeout=20 * FREE_S + START_S)[0] for one in scripts]
    return Measured(sum(float(one.split()[-1]) for one in said), {})


def train_script(
    workers: int, options: Sequence[str], scratch: Path, watch: Callable[..., None]
) -> None:
    """`speedo run` with the script."""
    run_dir = scratch / "run"
    words = ["run", "--workers", str(workers), "--run-dir", str(run_dir), *options]
    command = [sys.executable, "-m", "speedo", *words, str(SCRIPT), "--seconds", "1000000"]
    with (scratch / "run.log").open("w") as log, child(command, log=log) as process:
        watch(process, run_dir)


def throttling(shares: Sequence[float]) -> Callable[[subprocess.Popen[str], Path], None]:
    """For `train`: throttles the workers from the first turn to the end of the run."""

    def watch(process: subprocess.Popen[str], run_dir: Path) -> None:
        with throttled(_processes(run_dir, len(shares)), shares):
            process.wait()

    return watch


def _processes(run_dir: Path, workers: int) -> list[int]:
    """The process ids of the workers, once all have joined."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        log = run_dir / METRICS
        lines = map(json.loads, log.read_text().splitlines()[:-1] if log.exists() else ())
        found = {one["worker"]: int(one["process"]) for one in lines if one["event"] == "joined"}
        if len(found) == workers:
            return [_script_of(found[worker]) for worker in sorted(found)]
        time.sleep(0.1)
    raise MeasureError(f"{workers} workers did not join")


def _script_of(worker: int) -> int:
    """The process that computes: the script of this worker, if it has one."""
    below = psutil.Process(worker).children(recursive=True)
    return next((one.pid for one in below if str(SCRIPT) in one.cmdline()), worker)


def rates(run_dir: Path) -> tuple[dict[str, float], list[tuple[float, str]]]:
    """Images/s of the whole run, and after the last division, or in the second half without one; the divisions."""
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
    found = {"whole": _rate(merged, first), "settled": _rate(merged, begin)}
    return found, [(one.seconds - first, one.reason) for one in divisions]


def _rate(merged: list[tuple[float, int]], begin: float) -> float:
    inside = [(at, samples) for at, samples in merged if at >= begin]
    if len(inside) < 2 or inside[-1][0] <= inside[0][0]:
        raise MeasureError("the run ended before its division had settled: more --seconds")
    images = sum(samples for at, samples in inside if at > inside[0][0])
    return images / (inside[-1][0] - inside[0][0])


def main() -> int:
    """Status 1 if a measurement failed."""
    parser = parser_for("bench.unequal", __doc__, default_rounds=3)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--script", action="store_true", help="a script, instead of the nets")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--workers", type=whole, default=4, metavar="N")
    parser.add_argument("--share", type=float, default=0.1, metavar="PART", help="of the others'")
    parser.add_argument("--others", type=float, default=0.45, metavar="PART", help="of the time")
    parser.add_argument("--seconds", type=seconds, default=80.0, help="of a run")
    asked = parser.parse_args()
    if not (0.02 <= asked.share <= 1 and 0.1 <= asked.others <= 1) or asked.workers < 2:
        parser.error("use --share 0.02 to 1, --others 0.1 to 1, and 2 or more --workers")
    shares = [asked.others] * (asked.workers - 1) + [asked.others * asked.share]
    end_by_signals()
    _, say = heading("bench.unequal")
    failures = list[str]()
    lines = [["", "way", *RATES, *(" / ".join(pair) for pair in RATIOS), "divided"]]
    for name in [SCRIPT.name] if asked.script else asked.nets:
        found: dict[str, list[dict[str, Measured]]] = {way: [] for way in asked.ways}
        said = dict.fromkeys(asked.ways, "")
        for number in range(asked.rounds):
            with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
                alone: Callable[..., Measured]
                if asked.script:
                    whole_batch = BATCH * asked.workers
                    alone = free_scripts
                else:
                    net = Bench.make(name, Path(folder) / name)
                    whole_batch = net.batch
                    alone = partial(free, net, scratch=Path(folder))
                equal = [whole_batch // asked.workers] * asked.workers
                try:
                    say(f"{name}, round {number + 1}: free")
                    before = alone(equal, shares)
                    for way in asked.ways:
                        say(f"{name}, round {number + 1}: {way}")
                        scratch = Path(folder) / way
                        scratch.mkdir()
                        options = [
                            "--mode",
                            f"batch_division={way}",
                            "--max-seconds",
                            str(asked.seconds),
                        ]
                        watch = throttling(shares)
                        if asked.script:
                            train_script(
                                asked.workers, ["--mode", "sync", *options], scratch, watch
                            )
                        else:
                            train(
                                net, "sync", asked.workers, MANY, options, scratch,
                                seconds=asked.seconds, watch=watch,
                            )  # fmt: skip
                        of_run, divisions = rates(scratch / "run")
                        both = {one: Measured(rate, {}) for one, rate in of_run.items()}
                        said[way] = _said(divisions)
                        sizes = _sizes(said[way]) or equal
                        those = [one for one in zip(sizes, shares, strict=True) if one[0]]
                        after = alone(*zip(*those, strict=True))
                        found[way].append({**both, "equal": before, "shares": after})
                except MeasureError as error:
                    failures.append(f"{name}: {error}")
        for way in asked.ways:
            line = [f"{name}, batch {whole_batch}", way]
            line += [_whole(found[way], one) for one in RATES]
            for pair in RATIOS:
                ratio = paired_ratio(found[way], *pair)
                line.append("" if ratio is None else _said_of(ratio))
            lines.append([*line, said[way]])
    write = table.markdown if asked.markdown else table.text
    who = f"{asked.workers} workers, the last at {asked.share:g}, on {cores()} cores"
    print(f"\n{who}; {rounds(asked.rounds)}\n\n{write(lines)}")
    return status_of(failures)


def _said(divisions: list[tuple[float, str]]) -> str:
    if not divisions:
        return ""
    records = divisions[-1][1].partition(": ")[2].partition(" records")[0]
    return f"{records} at {', '.join(f'{at:.0f}' for at, _ in divisions)} s"


def _sizes(said: str) -> list[int]:
    return [int(one) for one in said.partition(" ")[0].split("+") if one]


def _said_of(ratio: Ratio) -> str:
    return f"{ratio.median:.3f} ({ratio.least:.3f} to {ratio.most:.3f})"


def _whole(found: list[dict[str, Measured]], name: str) -> str:
    rate = median_rate(found, name)
    return "" if rate is None else f"{rate:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
