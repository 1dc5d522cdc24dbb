"""Summing an array of each process over the processes of this host: ours beside PyTorch's gloo, GB of the array/s.

    python -m bench.collective [--mb 0.004 1.7 53 244] [--processes 2 4] [--python FILE] [--rounds 9]

In each round the same processes run both, one after the other, with one thread each. Prints medians, and the median of
the ratios within a round; also of the first process's processor time, which other load disturbs less. PyTorch is no
dependency of SpeeDO: install the group `peers`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import numpy as np

from bench.ddp import LOOPBACK, torch_version
from bench.support import table
from bench.support.arguments import parser_for, whole
from bench.support.arguments import rounds as said
from bench.support.machine import heading
from bench.support.processes import end_by_signals
from speedo.exchange.collective import Collective

MOVED: Final = 3e8  # bytes of the array that go through in a round, about
MOST_CALLS: Final = 500
PATIENCE_S: Final = 60.0
LIMIT_S: Final = 600.0  # of all rounds of one size
Times = tuple[float, float]
HEADING: Final = [
    *("processes", "MB", "ours, GB/s", "gloo, GB/s", "ours/gloo", "least to most"),
    "by processor time",
]


def member(folder: Path, rank: int, processes: int, nbytes: int, rounds: int) -> None:
    """One process; the first prints for each round ours and gloo's seconds of a call, and those of the processor."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=processes,
        timeout=timedelta(seconds=PATIENCE_S),
    )
    array = np.zeros(nbytes // 4, np.float32)  # sums of anything else would grow beyond all bounds
    array[:] = 0.0  # so that its pages are there
    tensor = torch.from_numpy(array)
    calls = max(2, min(MOST_CALLS, int(MOVED / nbytes)))
    with Collective(folder, rank, processes, patience_s=PATIENCE_S) as collective:

        def seconds(call: Callable[[], object]) -> Times:
            collective.barrier()
            began, used = time.perf_counter(), time.process_time()
            for _ in range(calls):
                call()
            return (time.perf_counter() - began) / calls, (time.process_time() - used) / calls

        def ours() -> object:
            return collective.all_reduce(array)

        def gloo() -> object:
            return dist.all_reduce(tensor)

        ours()
        gloo()
        found = [
            (seconds(ours), seconds(gloo)) if number % 2 else (seconds(gloo), seconds(ours))[::-1]
            for number in range(rounds)
        ]
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def measure(python: str, processes: int, nbytes: int, rounds: int) -> list[tuple[Times, Times]]:
    """For each round ours and gloo's seconds of a call, and those of the first process's processor."""
    with tempfile.TemporaryDirectory(prefix="speedo-bench-", dir="/dev/shm") as folder:
        members = [
            subprocess.Popen(
                [
                    *(python, "-m", "bench.collective", "--member", folder),
                    *map(str, (rank, processes, nbytes, rounds)),
                ],
                stdout=subprocess.PIPE if rank == 0 else None,
                text=True,
            )
            for rank in range(processes)
        ]
        try:
            out = members[0].communicate(timeout=LIMIT_S)[0]
            if any(one.wait(timeout=PATIENCE_S) for one in members):
                raise SystemExit("a process failed; what it said stands above")
        finally:
            for one in members:
                one.kill()
                one.wait()
        return [(tuple(ours), tuple(gloo)) for ours, gloo in json.loads(out)]


def row(processes: int, mb: float, found: Sequence[tuple[Times, Times]]) -> list[str]:
    """A line of the table."""
    ratios = [gloo[0] / ours[0] for ours, gloo in found]
    used = [gloo[1] / ours[1] for ours, gloo in found]
    ours, gloo = (
        mb / 1e3 / statistics.median(seconds for seconds, _ in times)
        for times in zip(*found, strict=True)
    )
    return [
        *(str(processes), f"{mb:g}", f"{ours:.3f}", f"{gloo:.3f}"),
        f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        f"{statistics.median(used):.2f}",
    ]


def main() -> int:
    parser = parser_for("bench.collective", __doc__, default_rounds=9)
    parser.add_argument("--mb", nargs="+", type=float, default=[0.004, 1.7, 53, 244])
    parser.add_argument("--processes", nargs="+", type=whole, default=[2, 4], metavar="N")
    parser.add_argument("--python", default=sys.executable, metavar="FILE", help="with PyTorch")
    asked = parser.parse_args()
    end_by_signals()
    version = torch_version(asked.python)
    _, say = heading("bench.collective")
    os.environ.update(LOOPBACK, OMP_NUM_THREADS="1")
    lines = [HEADING]
    for processes in asked.processes:
        for mb in asked.mb:
            nbytes = int(mb * 1e6) // 4 * 4
            found = measure(asked.python, processes, nbytes, asked.rounds)
            lines.append(row(processes, mb, found))
            say(" ".join(lines[-1]))
    write = table.markdown if asked.markdown else table.text
    print(f"\nPyTorch {version}, medians of {said(asked.rounds)}\n\n{write(lines)}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--member"]:
        member(Path(sys.argv[2]), *map(int, sys.argv[3:]))
    else:
        sys.exit(main())
