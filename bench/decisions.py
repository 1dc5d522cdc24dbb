"""Milliseconds of the master's process for a result: where each comes alone, and where several wait together.

    python -m bench.decisions [--together 1 4 16] [--floats 4 430500] [--results 2000] [--rounds 3]

Driver, coordinator, center, divergence watch, status and run log are the real ones, in mode async with one local step;
the payloads are there when the driver asks for the next result, and writing them is not counted. Ratios are those of
the same round. Each size is measured over shared memory; the first also over a dictionary, which leaves the Python.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from bench.support.table import text
from speedo.storage.base import Store
from speedo.storage.memory_store import MemoryStore
from speedo.storage.shared_memory.store import SharedMemoryStore
from speedo.study.planning.masters_time import time_of_results


def measure(floats: int, workers: int, results: int, *, together: bool, in_memory: bool) -> float:
    """Milliseconds of a result."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as shared,
        tempfile.TemporaryDirectory() as run,
    ):
        one: Store = SharedMemoryStore(Path(shared))
        other: Store = SharedMemoryStore(Path(shared))
        if in_memory:
            one = other = MemoryStore()
        took = time_of_results(floats, workers, results, (one, other), Path(run), together=together)
        one.close()
        other.close()
    return 1e3 * took.whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--together", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--floats", type=int, nargs="+", default=[4, 430_500])
    parser.add_argument("--results", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rows = [["floats", "workers", "alone, ms", "together, ms", "alone / together"]]
    sizes = [(arguments.floats[0], True), *((floats, False) for floats in arguments.floats)]
    for floats, in_memory in sizes:
        for workers in arguments.together:
            found = []
            for _ in range(arguments.rounds):
                alone, other = (
                    measure(floats, workers, arguments.results, together=one, in_memory=in_memory)
                    for one in (False, True)
                )
                found.append((alone, other))
            ratio = statistics.median(one / other for one, other in found)
            alone, other = (statistics.median(column) for column in zip(*found, strict=True))
            size = f"{floats:,}, no store" if in_memory else f"{floats:,}"
            rows.append([size, str(workers), f"{alone:.3f}", f"{other:.3f}", f"{ratio:.2f}"])
    print(text(rows))


if __name__ == "__main__":
    main()
