"""Three epochs of LeNet with `--data-share once`, while workers are killed, added and sent away: each record once.

    python -m bench.records [--mode async] [--events 100] [--workers 2] [--epochs 3] [--seed 1]

Fashion-MNIST, 60,000 records. Spread over the run a worker is killed (SIGKILL), or the run is scaled to one worker more
or less than `--workers`: `--events` in all, 0 for none. Prints how often each record of each epoch was trained, by the
log of the run, what joined, left and was dropped, and the test accuracy. Status 1 unless each record of each epoch was
trained exactly once.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.support.processes import MARK, child, end_by_signals, processes
from bench.support.runs import result_of
from bench.support.timed import Follower
from speedo.run_dir.events import LogFollower, ResultDropped, ResultMerged, WorkerJoined, WorkerLeft
from tests.support.record_counts import RecordCounts

RECORDS, BATCH = 60_000, 64


def train(asked: argparse.Namespace, folder: Path) -> Counter[str]:
    """Run it; what happened to it."""
    mark, chance, events = os.urandom(8).hex(), random.Random(asked.seed), Counter[str]()
    iterations = -(-asked.epochs * RECORDS // BATCH)
    command = [
        sys.executable, "-m", "speedo", "train", "--mode", asked.mode, "--data-share", asked.share,
        "--workers", str(asked.workers), "--max-iter", str(iterations), "--test-interval", "0",
        "--run-dir", str(folder), "--seed", str(asked.seed), "--restarts", "1000000", "--data-share", "reshard_after=3",
    ]  # fmt: skip
    environment = {MARK: mark}
    with (
        (folder.parent / f"{folder.name}.log").open("w") as log,
        child(command, log=log, environment=environment) as process,
    ):
        follower, between = Follower(folder), asked.epochs * RECORDS / (asked.events + 1)
        while process.poll() is None:
            time.sleep(0.05)
            follower.read()
            if events.total() >= asked.events or follower.samples < between * (events.total() + 1):
                continue
            if chance.random() < 0.7:
                victims = processes("worker", mark)
                if victims:
                    chance.choice(victims).kill()
                    events["kill"] += 1
            else:
                count = max(1, asked.workers + chance.choice((-1, 0, 1)))
                scaled = subprocess.run(
                    [sys.executable, "-m", "speedo", "scale", str(count), str(folder)],
                    capture_output=True,
                    check=False,
                    timeout=60,
                )
                events["scale"] += scaled.returncode == 0
    return events


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.records", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--mode", default="async")
    parser.add_argument("--share", default="once")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    end_by_signals()
    with tempfile.TemporaryDirectory(prefix="speedo-bench-") as name:
        folder = Path(name) / "run"
        events = train(asked, folder)
        counts, lines = RecordCounts(), Counter[str]()
        log = LogFollower(folder)
        while found := log.new():
            for one in found:
                if isinstance(one, ResultMerged):
                    counts.add(one.records)
                    lines["merged"] += 1
                elif isinstance(one, ResultDropped):
                    lines[one.decision] += 1
                elif isinstance(one, WorkerJoined | WorkerLeft):
                    lines[type(one).__name__] += 1
        result = result_of(folder)
        print(f"made to happen: {dict(events)}; in the log: {dict(lines)}")
        exact = counts.twice() == 0
        for epoch in range(asked.epochs):
            once = sum(counts.trained[epoch, number] == 1 for number in range(RECORDS))
            twice = sum(counts.trained[epoch, number] > 1 for number in range(RECORDS))
            print(f"epoch {epoch + 1}: {once:,} of {RECORDS:,} records once, {twice:,} more often")
            exact = exact and once == RECORDS
        print(
            f"{asked.mode}, seed {asked.seed}: accuracy {result['accuracy']}, {result['images_per_s']:.0f} images/s, "
            f"{result['reason']}"
        )
    return int(not exact)


if __name__ == "__main__":
    sys.exit(main())
