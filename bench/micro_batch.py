"""A batch that exceeds the memory, in parts: images/s beside the largest batch that goes through whole.

    python -m bench.micro_batch [--net googlenet] [--batch 256] [--megabytes 4096] [--images 512] [--rounds 1]
                                [--threads 2]

Each measurement is a process whose data may take so many megabytes (RLIMIT_DATA). First the whole batch is tried, which
must fail, then halves of it until one goes through. In each round this one and the batch in parts (`micro_batch=auto`)
take turns, with one step to warm up and so many images then. `estimate` is what `speedo doctor` says of the
step, `taken` by how much the process grew from the built net to its largest. Status 1 if the whole batch went through.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.support import table
from bench.support.arguments import parser_for, whole
from bench.support.machine import heading
from bench.support.processes import end_by_signals
from tests.support.bundled_nets import SHAPES, Bench

PATIENCE_S = 1800.0


@dataclass(frozen=True, slots=True)
class Way:
    """A batch, and how it goes through: whole, or in parts with `auto`."""

    batch: int
    micro_batch: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """One process: images/s, the records of a part, the largest memory and its estimate; or the problem."""

    images_per_s: float = 0.0
    part: int = 0
    taken: int = 0
    estimate: int = 0
    problem: str = ""


def halves(batch: int) -> Iterator[int]:
    """Smaller batches, each half of the one before."""
    while batch > 1:
        batch = -(-batch // 2)
        yield batch


def measure(net: Bench, way: Way, images: int, megabytes: int, threads: int) -> Found:
    steps = max(1, round(images / way.batch))
    words = [net.solver(way.batch), steps, way.micro_batch or "whole", megabytes << 20, threads]
    child = subprocess.run(
        [sys.executable, "-m", "bench.support.limited_steps", *map(str, words)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )  # fmt: skip
    answer = child.stdout.rpartition("\n{")[2]
    if not answer:
        last = (child.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return Found(problem=f"ended with status {child.returncode}: {last}")
    return Found(**json.loads("{" + answer))


def row(name: str, found: list[Found]) -> list[str]:
    rates = [one.images_per_s for one in found]
    last = found[-1]
    return [
        name, str(last.part), f"{statistics.median(rates):.2f}",
        f"{last.taken / 1e6:,.0f}", f"{last.estimate / 1e6:,.0f}",
    ]  # fmt: skip


def main() -> int:
    parser = parser_for("bench.micro_batch", __doc__, default_rounds=1)
    parser.add_argument("--net", choices=list(SHAPES), default="googlenet")
    parser.add_argument("--batch", type=whole, default=256, metavar="N")
    parser.add_argument("--megabytes", type=whole, default=4096, metavar="N", help="the limit")
    parser.add_argument("--images", type=whole, default=512, metavar="N", help="of a measurement")
    parser.add_argument("--threads", type=whole, default=2, metavar="N")
    asked = parser.parse_args()
    end_by_signals()
    _, say = heading("bench.micro_batch")
    terms = (asked.images, asked.megabytes, asked.threads)
    with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
        net = Bench.make(asked.net, Path(folder) / asked.net)
        tried = measure(net, Way(asked.batch), *terms)
        if not tried.problem:
            print(f"the batch of {asked.batch} fits {asked.megabytes} MB: give less --megabytes")
            return 1
        say(f"whole batch of {asked.batch}: {tried.problem}")
        largest, fits = 0, tried
        for largest in halves(asked.batch):
            fits = measure(net, Way(largest), *terms)
            say(f"whole batch of {largest}: {fits.problem or f'{fits.images_per_s:.2f} images/s'}")
            if not fits.problem:
                break
        if fits.problem:
            print(f"no batch fits {asked.megabytes} MB: give more --megabytes")
            return 1
        at_once, parts = [fits], []
        for number in range(asked.rounds):
            if number:
                at_once.append(measure(net, Way(largest), *terms))
            parts.append(measure(net, Way(asked.batch, "auto"), *terms))
            say(
                f"batch of {asked.batch} in parts: "
                + (parts[-1].problem or f"{parts[-1].images_per_s:.2f} images/s")
            )
    failed = [one.problem for one in (*at_once, *parts) if one.problem]
    if failed:
        print(f"failed: {failed[0]}")
        return 1
    lines = [
        ["", "records at a time", "images/s", "taken MB", "estimate MB"],
        row(f"batch {largest}, whole", at_once),
        row(f"batch {asked.batch}, in parts", parts),
    ]
    write = table.markdown if asked.markdown else table.text
    ratio = statistics.median(
        part.images_per_s / one.images_per_s for part, one in zip(parts, at_once, strict=True)
    )
    print(f"\n{asked.net} under {asked.megabytes} MB, {asked.threads} threads\n\n{write(lines)}")
    print(f"\nin parts: {ratio:.3f} of the images/s of the largest batch that goes through whole")
    return 0


if __name__ == "__main__":
    sys.exit(main())
