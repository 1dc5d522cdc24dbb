"""Workers on a GPU beside a plain PyTorch script there: one worker, and two on the same GPU in every mode.

    python -m bench.gpu [--device cuda:0] [--nets lenet cifar10_full alexnet googlenet] [--modes sync async ...]

For a machine with a GPU and PyTorch for it. Each row is measured with float32 and with bfloat16; the script with
channels last in bfloat16, as people run it. Prints medians and ratios taken within a round, with the GPU's name.
Status 1 if a measurement failed, 2 if there is no such device.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.engines import NETS, script
from bench.support import table
from bench.support.arguments import parser_for, seconds
from bench.support.arguments import rounds as said
from bench.support.figures import Measured, MeasureError, median_rate, paired_ratio
from bench.support.machine import heading, status_of
from bench.support.processes import end_by_signals
from bench.support.runs import free_running, iterations_for, train
from bench.support.throughput import Round, Row, rounds_of
from tests.support.bundled_nets import Bench

BATCHES = {"alexnet": 256, "googlenet": 32}
MODES = ("sync", "async", "partial", "weed-out", "easgd")
PRECISIONS = ("float32", "bfloat16")
PLAIN = "plain PyTorch"


def device_name(device: str) -> str:
    """The name of the GPU; ends the program if there is none."""
    try:
        import torch

        if torch.cuda.is_available():
            return f"{torch.cuda.get_device_name(device)}, PyTorch {torch.__version__}"
        why = f"PyTorch {torch.__version__} sees no GPU here"
    except ImportError:
        why = "there is no PyTorch here: TORCH=1 make setup, or a build for your GPU"
    print(f"bench.gpu: {why}", file=sys.stderr)
    raise SystemExit(2)


def rows_of(batch: int, modes: Sequence[str]) -> list[Row]:
    """All rows of one net, the plain scripts first."""
    rows = [Row(f"{PLAIN}, {precision}", (batch,)) for precision in PRECISIONS]
    for precision in PRECISIONS:
        plain = f"{PLAIN}, {precision}"
        words = ("--engine", f"precision={precision}")
        rows.append(
            Row(f"one worker, {precision}", (batch,), "async", baseline=plain, options=words)
        )
        rows += [
            Row(f"{mode}, two workers, {precision}", (batch,) * 2, mode, baseline=plain, options=words)
            for mode in modes
        ]  # fmt: skip
    return rows


def measure(
    net: Bench, asked: argparse.Namespace, row: Row, done: Round, scratch: Path
) -> Measured:
    """One row of one round."""
    if row.mode is None:
        half = row.name.endswith("bfloat16")
        words = ["--device", asked.device, *(["--bfloat16", "--channels-last"] if half else [])]
        command = script(net.name, net.batch, asked.seconds, *words)
        return free_running([command], row.batches, asked.seconds, scratch)
    if row.baseline not in done:
        raise MeasureError("the length of the run cannot be told without the plain script")
    rate = done[str(row.baseline)].images_per_s
    workers = len(row.batches)
    count = iterations_for(asked.seconds, rate, net.batch, 1, 1)  # workers share the GPU
    options = ["--whole-batch", "--engine", "torch", "--device", asked.device, *row.options]
    return train(net, row.mode, workers, count, options, scratch, seconds=asked.seconds)


def rates(rows: Sequence[Row], rounds: Sequence[Round]) -> table.Table:
    """Images/s, and the ratio to the plain script of the same precision."""
    lines = [["", "images/s", "of plain PyTorch", "least to most"]]
    for row in rows:
        rate = median_rate(rounds, row.name)
        peer = paired_ratio(rounds, row.name, row.baseline) if row.baseline else None
        lines.append([
            row.name,
            table.number(rate),
            "" if peer is None else f"{peer.median:.3f}",
            "" if peer is None else f"{peer.least:.3f} to {peer.most:.3f}",
        ])  # fmt: skip
    return lines


def main() -> int:
    parser = parser_for("bench.gpu", __doc__, default_rounds=3)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument(
        "--seconds", type=seconds, default=5.0, metavar="S", help="of training each"
    )
    asked = parser.parse_args()
    end_by_signals()
    gpu = device_name(asked.device)
    _, say = heading("bench.gpu")
    write = table.markdown if asked.markdown else table.text
    failures = []
    for name in asked.nets:
        with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
            net = Bench.make(name, Path(folder) / name)
            net = replace(net, batch=BATCHES.get(name, net.batch))
            rows = rows_of(net.batch, asked.modes)
            rounds, failed = rounds_of(name, rows, asked.rounds, partial(measure, net, asked), say)
        failures += failed
        print(
            f"\n{name}, batch {net.batch}, {gpu}: medians of {said(asked.rounds)} of {asked.seconds:g} s\n\n"
            f"{write(rates(rows, rounds))}"
        )
    return status_of(failures)


if __name__ == "__main__":
    sys.exit(main())
