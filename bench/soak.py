"""A long training in which processes are killed at random, with calm minutes in between to compare with.

    python -m bench.soak [--mode async] [--minutes 30] [--every 19] [--calm 60] [--seed 1] [--keep FOLDER]

LeNet on Fashion-MNIST, every vector through Redis. For `--minutes` in all a worker is killed (SIGKILL) at a random
moment of every `--every` seconds, now and then Redis or the tester instead. Every five minutes of it nobody is killed
for `--calm` seconds, and so at the beginning and at the end: a machine's speed drifts, so what the kills cost is told
by the calm minutes next to them. The number of iterations is taken from the speed of a short run before, and a quarter
more, lest a machine that gets faster be done too early.

Prints the final accuracy, kills by kind, the speed in each stretch, and the memory of master and Redis at the
beginning and at the end. Status 1 if the accuracy is below `--target`, the time of a sample under kills more than
15 % longer, or memory grew by more than 10 %.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.support.figures import MeasureError
from bench.support.processes import MARK, child, end_by_signals, processes
from bench.support.runs import result_of
from bench.support.timed import Follower

KINDS = (("worker", 8), ("redis", 1), ("tester", 1))
STRETCH_S = 300.0  # with kills
BACK_S = 10.0  # for the last that died to be back, which counts as a part of the stretch
START_S, SHORTEST_S = 30.0, 20.0
MOST_OVERHEAD, MOST_GROWTH, LEAST_GROWTH_MB = 0.15, 0.10, 20.0
PROBE_ITERATIONS = 3000
MARGIN = 1.25  # in iterations


def megabytes(kind: str, mark: str) -> float:
    total = 0
    for process in processes(kind, mark):
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total / 1e6


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the run, with kills or without."""

    kills: bool
    seconds: float
    samples: int

    @property
    def images_per_s(self) -> float:
        return self.samples / self.seconds


def run(
    arguments: argparse.Namespace, folder: Path, iterations: int, kill: random.Random | None
) -> dict[str, Any]:
    """One training; its result with `status`, `kills`, `stretches` and the `memory` seen, in MB."""
    mark = os.urandom(8).hex()
    command = [
        sys.executable, "-m", "speedo", "train", "--mode", arguments.mode,
        "--workers", str(arguments.workers), "--max-iter", str(iterations), "--test-interval", "2000",
        "--run-dir", str(folder), "--seed", str(arguments.seed), "--restarts", "1000000",
        "--redis", "same_node=redis",
    ]  # fmt: skip
    kills: Counter[str] = Counter()
    memory: dict[str, list[float]] = {"master": [], "redis": []}
    stretches: list[Stretch] = []
    follower = Follower(folder)
    killing, before = False, (0.0, 0)
    started = time.monotonic()
    turn_at, next_kill, slot = started + START_S, float("inf"), started

    def end_stretch() -> None:
        nonlocal before
        follower.read()
        now = follower.seconds, follower.samples
        if before[1] and now[0] - before[0] >= SHORTEST_S:
            stretches.append(Stretch(killing, now[0] - before[0], now[1] - before[1]))
        before = now

    with (
        (folder.parent / f"{folder.name}.log").open("w") as log,
        child(command, log=log, environment={MARK: mark}) as process,
    ):
        while process.poll() is None:
            time.sleep(1.0)
            now = time.monotonic()
            if int(now) % 5 == 0 and now > started + START_S:
                for kind, seen in memory.items():
                    size = megabytes(kind, mark)
                    if size:
                        seen.append(size)
            if kill is not None and now >= turn_at and next_kill < float("inf"):
                turn_at, next_kill = now + BACK_S, float("inf")
            elif kill is not None and now >= turn_at:
                end_stretch()
                killing = bool(stretches) and not killing
                turn_at = now + (STRETCH_S if killing else arguments.calm)
                slot = now
                next_kill = slot + kill.uniform(0, arguments.every) if killing else float("inf")
            if kill is not None and now >= next_kill:
                kind = kill.choices([one for one, _ in KINDS], [weight for _, weight in KINDS])[0]
                victims = processes(kind, mark)
                if victims:  # else a second later
                    kill.choice(victims).kill()
                    kills[kind] += 1
                    slot += arguments.every
                    next_kill = slot + kill.uniform(0, arguments.every)
        status = process.returncode
    end_stretch()
    try:
        result = result_of(folder)
    except MeasureError:
        said = (folder.parent / f"{folder.name}.log").read_text()[-2000:]
        raise SystemExit(f"status {status}: {said}") from None
    return {**result, "status": status, "kills": kills, "memory": memory, "stretches": stretches}


def ends(seen: list[float]) -> tuple[float, float]:
    """Medians of the first and of the last fifth, the start aside."""
    fifth = max(len(seen) // 5, 1)
    return statistics.median(seen[fifth : 2 * fifth] or seen), statistics.median(seen[-fifth:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", default="async")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=19.0, metavar="S")
    parser.add_argument("--target", type=float, default=0.86, metavar="ACCURACY")
    parser.add_argument("--calm", type=float, default=60.0, metavar="S")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="run folders and logs here")
    arguments = parser.parse_args()
    end_by_signals()
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        probe = run(arguments, folder / "probe", PROBE_ITERATIONS, None)
        speed = float(probe["images_per_s"]) / 64
        minutes = arguments.minutes * (1 + arguments.calm / STRETCH_S) + arguments.calm / 60
        iterations = int(MARGIN * speed * 60 * minutes)
        print(f"{speed:.0f} iterations/s: {iterations} iterations", flush=True)
        result = run(arguments, folder / "soak", iterations, random.Random(arguments.seed))
    sys.exit(report(result, arguments.target))


def report(result: Mapping[str, Any], target: float) -> bool:
    """Print what came of it; whether it failed."""
    accuracy = float(result["accuracy"] or "nan")
    failed = result["status"] != 0 or not accuracy >= target
    if result["accuracy"] is None:
        print(f"not tested: {result['test_problem']}; ended: {result['reason']}")
    stretches: Sequence[Stretch] = result["stretches"]
    for one in stretches:
        print(
            f"{'kills' if one.kills else 'calm':5} {one.seconds:4.0f} s {one.images_per_s:,.0f} images/s"
        )
    calm, kills = (time_of_a_sample(stretches, kills=kills) for kills in (False, True))
    killed = sum(one.seconds for one in stretches if one.kills)
    counts = result["kills"]
    print(
        f"status {result['status']}, accuracy {accuracy:.4f} (target {target}), "
        f"kills {dict(counts)} in {killed:.0f} s, one every {killed / max(1, counts.total()):.1f} s, "
        f"dropped {result['dropped']}"
    )
    for kind, seen in result["memory"].items():
        first, last = ends(seen)
        grew = last > first * (1 + MOST_GROWTH) and last - first > LEAST_GROWTH_MB
        print(
            f"{kind}: {first:.0f} MB at first, {last:.0f} MB at last{', it grew' if grew else ''}"
        )
        failed |= grew
    print(f"overhead {kills / calm - 1:.1%}, at most {MOST_OVERHEAD:.0%}")
    return failed or kills / calm - 1 > MOST_OVERHEAD


def time_of_a_sample(stretches: Sequence[Stretch], *, kills: bool) -> float:
    """Seconds. Of calm stretches the mean of each two that stand around one with kills, so drift falls out."""
    if kills:
        chosen = [one for one in stretches if one.kills]
        return sum(one.seconds for one in chosen) / sum(one.samples for one in chosen)
    around = [
        (one.samples, stretches[place - 1], stretches[place + 1 : place + 2])
        for place, one in enumerate(stretches)
        if one.kills
    ]
    seconds = 0.0  # that the samples merged under kills would have taken in calm
    for samples, before, after in around:
        calm = [before, *(one for one in after if not one.kills)]
        seconds += samples * statistics.mean(1 / one.images_per_s for one in calm)
    return seconds / sum(samples for samples, _, _ in around)


if __name__ == "__main__":
    main()
