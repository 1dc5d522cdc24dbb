"""The engines beside plain Caffe and a plain PyTorch script: one process, one thread, the same net and batch.

    python -m bench.engines [--nets lenet cifar10_full alexnet googlenet] [--bfloat16] [--rounds 5] [--seconds 5]

Rows take turns in each round: plain Caffe, a plain PyTorch script (also with channels last), our engine on PyTorch
alone, and `speedo train --engine torch` with one worker. Prints medians and ratios taken within a round. PyTorch must
be installed here (`TORCH=1 make setup`). Status 1 if a measurement failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.support import table
from bench.support.arguments import parser_for, seconds
from bench.support.arguments import rounds as said
from bench.support.figures import Measured, MeasureError, median_rate, paired_ratio
from bench.support.machine import heading, status_of
from bench.support.processes import end_by_signals
from bench.support.runs import cores, free_running, iterations_for, plain_caffe, train
from bench.support.throughput import Round, Row, rounds_of
from tests.support.bundled_nets import Bench

SCRIPT = Path(__file__).with_name("support") / "torch_script.py"
NETS = ("lenet", "cifar10_full", "alexnet", "googlenet")
CAFFE, PLAIN, LAST = "plain Caffe", "plain PyTorch", "plain PyTorch, channels last"
ENGINE, WORKER = "torch engine alone", "one worker"
BF16 = ", bfloat16"


def rows_of(batch: int, *, bfloat16: bool) -> list[Row]:
    """All rows; with `bfloat16` those of PyTorch once more."""
    names = [CAFFE, PLAIN, LAST, ENGINE, WORKER]
    if bfloat16:
        names += [name + BF16 for name in names[1:]]
    return [Row(name, (batch,)) for name in names]


def script(net: str, batch: int, length: float, *words: str) -> list[str]:
    """The command of a plain PyTorch script."""
    return [sys.executable, "-P", str(SCRIPT), net, str(length), str(batch), *words]


def measure(
    net: Bench, asked: argparse.Namespace, row: Row, done: Round, scratch: Path
) -> Measured:
    """One row of one round."""
    name, half = row.name.removesuffix(BF16), row.name.endswith(BF16)
    if name == WORKER:
        rate = max((one.images_per_s for one in done.values()), default=0.0)
        if not rate:
            raise MeasureError("the length of the run cannot be told without another row")
        count = iterations_for(asked.seconds, rate, net.batch, 1, 1)
        options = ["--engine", "torch", "--device", "cpu"]
        options += ["--engine", "precision=bfloat16"] if half else []
        return train(net, "async", 1, count, options, scratch, seconds=asked.seconds)
    if name == CAFFE:
        command = plain_caffe(net, net.batch, asked.seconds)
    elif name == ENGINE:
        command = [
            sys.executable, "-m", "bench.support.engine_process", str(net.solver(net.batch)), str(asked.seconds),
            "torch", "cpu", "bfloat16" if half else "float32",
        ]  # fmt: skip
    else:
        words = ["--bfloat16"] * half + ["--channels-last"] * (name == LAST)
        command = script(net.name, net.batch, asked.seconds, *words)
    return free_running([command], row.batches, asked.seconds, scratch)


def rates(rows: Sequence[Row], rounds: Sequence[Round]) -> table.Table:
    """Images/s, and the ratios to both plain scripts."""
    lines = [["", "images/s", "of plain Caffe", "of plain PyTorch", "least to most"]]
    for row in rows:
        rate = median_rate(rounds, row.name)
        plain = PLAIN + BF16 * row.name.endswith(BF16)
        caffe = paired_ratio(rounds, row.name, CAFFE) if row.name != CAFFE else None
        peer = paired_ratio(rounds, row.name, plain) if row.name != plain else None
        lines.append([
            row.name,
            "failed" if rate is None else f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}",
            "" if caffe is None else f"{caffe.median:.2f}",
            "" if peer is None else f"{peer.median:.3f}",
            "" if peer is None else f"{peer.least:.3f} to {peer.most:.3f}",
        ])  # fmt: skip
    return lines


def main() -> int:
    parser = parser_for("bench.engines", __doc__)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument(
        "--seconds", type=seconds, default=5.0, metavar="S", help="of training each"
    )
    parser.add_argument("--bfloat16", action="store_true", help="measure that, too")
    asked = parser.parse_args()
    end_by_signals()
    _, say = heading("bench.engines")
    write = table.markdown if asked.markdown else table.text
    failures = []
    for name in asked.nets:
        with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
            net = Bench.make(name, Path(folder) / name)
            rows = rows_of(net.batch, bfloat16=asked.bfloat16)
            rounds, failed = rounds_of(name, rows, asked.rounds, partial(measure, net, asked), say)
        failures += failed
        print(
            f"\n{name}, batch {net.batch}, one thread: medians of {said(asked.rounds)} of {asked.seconds:g} s\n\n"
            f"{write(rates(rows, rounds))}"
        )
        for sentence in table.starved(rows[:4], rounds, cores()):
            print(f"\n{sentence}.")
    return status_of(failures)


if __name__ == "__main__":
    sys.exit(main())
