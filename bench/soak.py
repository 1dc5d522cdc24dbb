"""A long training in which processes are killed at random, beside the same training left in peace.

    python -m bench.soak [--mode async] [--minutes 30] [--every 20] [--calm 1.0] [--seed 1] [--keep FOLDER]

LeNet on Fashion-MNIST, every vector through Redis. Every `--every` seconds on average a worker is killed (SIGKILL),
now and then Redis or the tester instead. The number of iterations is taken from the speed of a short run before; the
calm runs, one before and one after, do a fraction `--calm` of them together, so that a machine whose speed drifts does
so for both. Prints accuracy, speed, kills by kind, and the memory of master and Redis
at the beginning and at the end. Status 1 if an accuracy is below `--target`, the speed with kills more than 15 %
lower, or memory grew by more than 10 %.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from bench.processes import child, end_by_signals

MARK = "SPEEDO_SOAK_MARK"
KINDS = (("worker", 8), ("redis", 1), ("tester", 1))
NAMES = {"worker": "ray::WorkerActor", "tester": "ray::TesterActor", "master": "ray::MasterActor"}
MOST_OVERHEAD, MOST_GROWTH, LEAST_GROWTH_MB = 0.15, 0.10, 20.0
PROBE_ITERATIONS = 3000


def processes(kind: str, mark: str) -> list[psutil.Process]:
    """The living processes of this kind in the run with this mark."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        try:
            line = " ".join(process.info["cmdline"] or [])
            if kind == "redis":  # it overwrites its environment; its parent keeps the mark
                parent = process.parent() if process.info["name"] == "redis-server" else None
                ours = parent is not None and parent.environ().get(MARK) == mark
            else:
                ours = NAMES[kind] in line and process.environ().get(MARK) == mark
        except psutil.Error:
            continue
        if ours:
            found.append(process)
    return found


def megabytes(kind: str, mark: str) -> float:
    total = 0
    for process in processes(kind, mark):
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total / 1e6


def run(
    arguments: argparse.Namespace, folder: Path, iterations: int, kill: random.Random | None
) -> dict[str, object]:
    """One training; its result with `wall_s`, `kills`, and the memory seen, in MB."""
    mark = os.urandom(8).hex()
    command = [
        sys.executable, "-m", "speedo", "train", "--mode", arguments.mode,
        "--workers", str(arguments.workers), "--max-iter", str(iterations), "--test-interval", "2000",
        "--run-dir", str(folder), "--seed", str(arguments.seed), "--restarts", "1000000",
        "--same-node", "redis",
    ]  # fmt: skip
    kills: Counter[str] = Counter()
    memory: dict[str, list[float]] = {"master": [], "redis": []}
    started = time.monotonic()
    next_kill = started + 20.0
    with (
        (folder.parent / f"{folder.name}.log").open("w") as log,
        child(command, log=log, environment={MARK: mark}) as process,
    ):
        while process.poll() is None:
            time.sleep(1.0)
            now = time.monotonic()
            if int(now) % 5 == 0 and now > started + 30:
                for kind, seen in memory.items():
                    size = megabytes(kind, mark)
                    if size:
                        seen.append(size)
            if kill is not None and now >= next_kill:
                next_kill = now + kill.expovariate(1.0 / arguments.every)
                kind = kill.choices([one for one, _ in KINDS], [weight for _, weight in KINDS])[0]
                victims = processes(kind, mark)
                if victims:
                    kill.choice(victims).kill()
                    kills[kind] += 1
        status = process.returncode
    if not (folder / "result.json").is_file():
        raise SystemExit(
            f"status {status}: {(folder.parent / f'{folder.name}.log').read_text()[-2000:]}"
        )
    result: dict[str, object] = json.loads((folder / "result.json").read_text())
    return {
        **result,
        "status": status,
        "wall_s": time.monotonic() - started,
        "kills": kills,
        "memory": memory,
    }


def ends(seen: list[float]) -> tuple[float, float]:
    """Medians of the first and of the last fifth, the start aside."""
    fifth = max(len(seen) // 5, 1)
    return statistics.median(seen[fifth : 2 * fifth] or seen), statistics.median(seen[-fifth:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", default="async")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=20.0, metavar="S")
    parser.add_argument("--target", type=float, default=0.86, metavar="ACCURACY")
    parser.add_argument("--calm", type=float, default=1.0, metavar="F")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="run folders and logs here")
    arguments = parser.parse_args()
    end_by_signals()
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        probe = run(arguments, folder / "probe", PROBE_ITERATIONS, None)
        speed = float(str(probe["images_per_s"])) / 64
        iterations = int(speed * 60 * arguments.minutes)
        print(
            f"{speed:.0f} iterations/s: {iterations} iterations for {arguments.minutes:g} minutes",
            flush=True,
        )
        half = int(0.5 * arguments.calm * iterations)
        kill = random.Random(arguments.seed)
        failed = False
        seconds: dict[str, float] = {}  # of training a sample
        for name, count, by in (
            ("calm, before", half, None),
            ("with kills", iterations, kill),
            ("calm, after", half, None),
        ):
            result = run(arguments, folder / name.replace(", ", "-").replace(" ", "-"), count, by)
            failed |= report(name, result, arguments.target)
            seconds[name] = 1.0 / float(str(result["images_per_s"]))
    calm = 0.5 * (seconds["calm, before"] + seconds["calm, after"])
    overhead = seconds["with kills"] / calm - 1
    print(f"overhead {overhead:.1%}, at most {MOST_OVERHEAD:.0%}")
    sys.exit(failed or overhead > MOST_OVERHEAD)


def report(name: str, result: dict[str, object], target: float) -> bool:
    """Print a run; whether it failed."""
    accuracy = float(str(result["accuracy"] or "nan"))
    failed = result["status"] != 0 or not accuracy >= target
    if result["accuracy"] is None:
        print(f"{name}: not tested: {result['test_problem']}; ended: {result['reason']}")
    print(
        f"{name}: status {result['status']}, accuracy {accuracy:.4f} (target {target}), {result['seconds']:.0f} s of "
        f"training, {result['images_per_s']:.0f} images/s, kills {dict(result['kills'])}, dropped {result['dropped']}",  # type: ignore[call-overload]
        flush=True,
    )
    memory: dict[str, list[float]] = result["memory"]  # type: ignore[assignment]
    for kind, seen in memory.items():
        if not seen:
            continue
        first, last = ends(seen)
        grew = last > first * (1 + MOST_GROWTH) and last - first > LEAST_GROWTH_MB
        print(
            f"  {kind}: {first:.0f} MB at first, {last:.0f} MB at last{', it grew' if grew else ''}",
            flush=True,
        )
        failed |= grew
    return failed


if __name__ == "__main__":
    main()
