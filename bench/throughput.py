"""Rounds of measurements of one net: sequential Caffe, free-running Caffe processes, and every mode.

The figure of a mode is its exchange efficiency: images/s of n workers over images/s of n free-running
processes of plain pycaffe with the same batch each, on the same machine and in the same round.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.figures import Measured, MeasureError, run_measured, steps_measured
from bench.nets import Bench
from bench.processes import child, last_words
from speedo.solver import split_batch

MODES = ("sync", "async", "partial", "weed-out", "easgd", "hybrid")
SEQUENTIAL = "sequential Caffe"
START_S = 180.0  # for a process to start, or to end beyond what it was asked to do
CYCLES = 4  # of hybrid's two phases in a run
PLAIN = Path(__file__).with_name("plain_caffe.py")
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLOG_minloglevel": "2",
    "MPLBACKEND": "Agg",
}

Round = dict[str, Measured]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. Without a mode it is plain Caffe, a process for each of `batches`."""

    name: str
    batches: tuple[int, ...]
    mode: str | None = None
    split: bool = False
    baseline: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What one call was asked for."""

    workers: int
    seconds: float
    repeats: int
    local_steps: int
    modes: tuple[str, ...]


def rows_of(batch: int, settings: Settings) -> list[Row]:
    """What is measured for a net of this batch; whatever has a baseline comes after it."""
    n = settings.workers
    whole, split = (batch,) * n, split_batch(batch, n)
    free, free_split = f"{n} free-running", f"{n} free-running, batch split"
    rows = [Row(SEQUENTIAL, (batch,)), Row(free, whole)]
    rows += [Row(mode, whole, mode, baseline=free) for mode in settings.modes]
    if "sync" in settings.modes and n > 1:
        rows.append(Row(free_split, split))
        rows.append(Row("sync, batch split", split, "sync", split=True, baseline=free_split))
    return rows


def turned(rows: Sequence[Row], number: int) -> list[Row]:
    """The rows of round `number`: sequential Caffe first, the others from another one each time."""
    rest = list(rows[1:])
    place = 3 * number % len(rest)
    return [rows[0], *rest[place:], *rest[:place]]


def measure_net(
    net: Bench, settings: Settings, say: Callable[[str], None]
) -> tuple[list[Round], list[str]]:
    """All rounds of one net, and what failed, a sentence each."""
    rounds: list[Round] = []
    failures: list[str] = []
    rows = rows_of(net.batch, settings)
    for number in range(settings.repeats):
        done: Round = {}
        rounds.append(done)
        for row in turned(rows, number):
            label = f"{net.name}, round {number + 1} of {settings.repeats}, {row.name}"
            began = time.monotonic()
            try:
                done[row.name] = _measure(net, row, settings, done.get(SEQUENTIAL))
            except MeasureError as error:
                failures.append(f"{label}: {error}")
                say(failures[-1])
                continue
            took = time.monotonic() - began
            say(f"{label}: {done[row.name].images_per_s:,.0f} images/s ({took:.0f} s)")
    return rounds, failures


def _measure(net: Bench, row: Row, settings: Settings, sequential: Measured | None) -> Measured:
    with tempfile.TemporaryDirectory(dir=net.folder) as scratch:
        if row.mode is None:
            return _free_running(net, row.batches, settings.seconds, Path(scratch))
        if sequential is None:
            raise MeasureError("the length of the run cannot be told without sequential Caffe")
        return _mode(net, row, settings, sequential, Path(scratch))


# ---------------------------------------------------------------- plain Caffe


def _free_running(net: Bench, batches: tuple[int, ...], seconds: float, scratch: Path) -> Measured:
    with ExitStack() as stack:
        log = stack.enter_context((scratch / "caffe.log").open("w"))
        processes = [
            stack.enter_context(
                child(
                    [sys.executable, "-P", str(PLAIN), str(net.solver(batch)), str(seconds)],
                    log=log,
                    talk=True,
                    environment=ONE_THREAD,
                )
            )
            for batch in batches
        ]
        for process in processes:
            if _answer(process, START_S, log) != "ready":
                raise MeasureError(f"plain Caffe did not start: {last_words(log)}")
        for process in processes:
            _start(process, log)
        told = [json.loads(_answer(process, 20 * seconds + START_S, log)) for process in processes]
        ends = [one["ends"] for one in told]
        return steps_measured(ends, batches, min(one["core"] for one in told))


def _start(process: subprocess.Popen[str], log: IO[str]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write("go\n")
        process.stdin.flush()
    except BrokenPipeError:
        raise MeasureError(f"plain Caffe died: {last_words(log)}") from None


def _answer(process: subprocess.Popen[str], seconds: float, log: IO[str]) -> str:
    """One line from a child, within these seconds."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    line = process.stdout.readline() if ready else ""
    if not line:
        raise MeasureError(f"plain Caffe gave no answer: {last_words(log)}")
    return line.strip()


# ---------------------------------------------------------------- the product


def _mode(
    net: Bench, row: Row, settings: Settings, sequential: Measured, scratch: Path
) -> Measured:
    """One `speedo train`, as long as `seconds` would be without any cost of exchange."""
    parallel = min(settings.workers, cores())
    iterations = max(
        12 * settings.workers * settings.local_steps,
        round(settings.seconds * sequential.images_per_s * parallel / net.batch),
    )
    run_dir = scratch / "run"
    command = [
        sys.executable, "-m", "speedo", "train", str(net.solver(net.batch)), "--cpu",
        "--mode", str(row.mode), "--workers", str(settings.workers),
        "--split-batch" if row.split else "--whole-batch",
        "--max-iter", str(iterations), "--test-interval", "0",
        "--seed", "1", "--run-dir", str(run_dir),
    ]  # fmt: skip
    tau = settings.local_steps
    if row.mode == "hybrid":
        length = max(1, iterations // (2 * CYCLES))
        for mode in ("sync", "async"):
            command += ["--phase", f"{mode}:{length},local_steps={tau}"]
    else:
        command += ["--local-steps", str(tau)]
    with (scratch / "train.log").open("w") as log, child(command, log=log) as process:
        try:
            status = process.wait(START_S + 20 * settings.seconds)
        except subprocess.TimeoutExpired:
            raise MeasureError(f"the run did not end: {last_words(log)}") from None
        if status != 0:
            raise MeasureError(f"status {status}: {last_words(log)}")
    with (run_dir / "metrics.jsonl").open(encoding="utf-8") as metrics:
        return run_measured(metrics, settings.workers)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))
