"""A net in PyTorch's DistributedDataParallel (gloo, CPU) beside our sync, with the same batch per process.

    python -m bench.ddp [--nets lenet] [--engine caffe] [--python FILE] [--rounds 5] [--seconds 5] [--options "..."]

Both have one thread per process. Rounds take turns: free-running Caffe, free-running PyTorch, DistributedDataParallel,
sync. Prints medians, and ratios taken within a round. PyTorch is no dependency of SpeeDO: install the group `peers`, or
give an interpreter that has it. Status 1 if a measurement failed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.support import table
from bench.support.arguments import parser_for, seconds, whole
from bench.support.arguments import rounds as said
from bench.support.figures import Measured, MeasureError, Ratio, median_rate, paired_ratio
from bench.support.machine import heading, status_of
from bench.support.processes import end_by_signals
from bench.support.runs import cores, free_running, iterations_for, plain_caffe, train
from bench.support.throughput import Round, Row, rounds_of
from tests.support.bundled_nets import Bench

TORCH = Path(__file__).with_name("support") / "torch_script.py"
DDP, SYNC = "DistributedDataParallel", "sync"
TORCH_NETS = ("lenet", "cifar10_full", "alexnet", "googlenet")  # those of `torch_script.py`
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}


def torch_version(python: str) -> str:
    """PyTorch's version in this interpreter; ends the program, with what to do, if there is none."""
    try:
        asked = subprocess.run(
            [python, "-c", "import torch; print(torch.__version__)"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if asked.returncode == 0:
            return asked.stdout.strip()
        why = (asked.stderr.strip().splitlines() or ["it said nothing"])[-1]
    except OSError as error:
        why = str(error)
    raise SystemExit(
        f"{python} has no PyTorch ({why}): pip install --group peers (pip 25.1 or later, in this "
        "checkout), or give an interpreter that has it with --python"
    )


def rows_of(batch: int, workers: int) -> list[Row]:
    batches = (batch,) * workers
    caffe, torch = f"{workers} free-running Caffe", f"{workers} free-running PyTorch"
    return [
        Row(caffe, batches),
        Row(torch, batches),
        Row(DDP, batches, baseline=torch),
        Row(SYNC, batches, "sync", baseline=caffe),
    ]


def rates(rows: Sequence[Row], rounds: Sequence[Round]) -> table.Table:
    """Images/s, and the ratios to free-running processes of the same kind and to DistributedDataParallel."""
    lines = [["", "images/s", "of free-running", "of DDP", "least to most"]]
    for row in rows:
        rate = median_rate(rounds, row.name)
        own = paired_ratio(rounds, row.name, row.baseline) if row.baseline else None
        peer = paired_ratio(rounds, row.name, DDP) if row.name != DDP else None
        lines.append(
            [
                row.name,
                table.number(rate),
                "" if own is None else f"{own.median:.1%}",
                "" if peer is None else f"{peer.median:.3f}",
                "" if peer is None else _spread(peer),
            ]
        )
    return lines


def _spread(ratio: Ratio) -> str:
    return f"{ratio.least:.3f} to {ratio.most:.3f}"


def main() -> int:
    parser = parser_for("bench.ddp", __doc__)
    parser.add_argument("--python", default=sys.executable, metavar="FILE", help="with PyTorch")
    parser.add_argument(
        "--seconds", type=seconds, default=5.0, metavar="S", help="of training each"
    )
    parser.add_argument("--workers", type=whole, default=2, metavar="N")
    parser.add_argument("--nets", nargs="+", choices=TORCH_NETS, default=["lenet"])
    parser.add_argument("--engine", choices=("caffe", "torch"), default="caffe", help="of sync")
    parser.add_argument("--options", default="", help="more options of speedo train")
    asked = parser.parse_args()
    end_by_signals()
    version = torch_version(asked.python)
    _, say = heading("bench.ddp")
    os.environ.update(LOOPBACK)
    write = table.markdown if asked.markdown else table.text
    failures = []
    for name in asked.nets:
        with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
            net = Bench.make(name, Path(folder) / name)
            rows = rows_of(net.batch, asked.workers)
            rounds, failed = rounds_of(
                name, rows, asked.rounds, partial(_measure, net, rows[0].name, asked), say
            )
        failures += failed
        print(
            f"\n{name}, batch {net.batch} for each of {asked.workers} processes, engine {asked.engine}, PyTorch "
            f"{version}: medians of {said(asked.rounds)} of {asked.seconds:g} s\n\n{write(rates(rows, rounds))}"
        )
        for sentence in table.starved(rows[:2], rounds, cores()):
            print(f"\n{sentence}.")
    return status_of(failures)


def _measure(
    net: Bench, caffe: str, asked: argparse.Namespace, row: Row, done: Round, scratch: Path
) -> Measured:
    """One row; `caffe` is the one by whose rate the length of a run is told."""
    if row.name == SYNC:
        if caffe not in done:
            raise MeasureError("the length of the run cannot be told without plain Caffe")
        rate = done[caffe].images_per_s / asked.workers
        count = iterations_for(asked.seconds, rate, net.batch, asked.workers, 1)
        options = ["--whole-batch", "--engine", asked.engine, *shlex.split(asked.options)]
        return train(net, "sync", asked.workers, count, options, scratch, seconds=asked.seconds)
    alone = [asked.python, "-P", str(TORCH), net.name, str(asked.seconds), str(net.batch)]
    if row.name == DDP:
        together = ["--processes", str(asked.workers), "--rendezvous", str(scratch / "rendezvous")]
        commands = [[*alone, "--rank", str(rank), *together] for rank in range(asked.workers)]
    elif "PyTorch" in row.name:
        commands = [alone] * asked.workers
    else:
        commands = [plain_caffe(net, net.batch, asked.seconds)] * asked.workers
    return free_running(commands, row.batches, asked.seconds, scratch)


if __name__ == "__main__":
    sys.exit(main())
