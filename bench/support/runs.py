"""One measurement each: plain processes that train on their own, and a whole `speedo train`."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import IO, Any

from bench.support.figures import Measured, MeasureError, run_measured, steps_measured
from bench.support.processes import child, last_words
from speedo.engines.openblas_kernels import CHOICE
from speedo.run_dir.directory import RESULT
from speedo.run_dir.read_back import read_result
from tests.support.bundled_nets import Bench

START_S = 180.0  # for a process to start, or to end beyond what it was asked to do
PLAIN = Path(__file__).with_name("plain_caffe.py")
CTRL_C = 130  # the status of a run that `watch` has ended
LEAST_TURNS = 12  # of each worker in a run
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLOG_minloglevel": "2",
    "MPLBACKEND": "Agg",
}

Watch = Callable[[subprocess.Popen[str], Path], None]


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


# ---------------------------------------------------------------- plain processes


@cache
def plain_terms(threads: int = 1) -> dict[str, str]:
    """The environment of plain processes: so many threads, and the routines of OpenBLAS that ours compute with.

    On a processor that OpenBLAS does not know plain Caffe would compute with its oldest, several times slower.
    """
    ask = (
        "from speedo.engines import caffe_import, openblas_kernels\n"
        "caffe_import.load_caffe()\n"
        "print(openblas_kernels.use_the_processor() or '')"
    )
    told = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True,
        env={**os.environ, **ONE_THREAD},
    )  # fmt: skip
    routines = told.stdout.split()
    terms = ONE_THREAD | {name: str(threads) for name in ONE_THREAD if "THREADS" in name}
    return {**terms, CHOICE: routines[-1]} if routines else terms


def plain_caffe(net: Bench, batch: int, seconds: float) -> list[str]:
    """The command of a process that trains alone for so many seconds."""
    return [sys.executable, "-P", str(PLAIN), str(net.solver(batch)), str(seconds)]


def free_running(
    commands: Sequence[Sequence[str]],
    batches: Sequence[int],
    seconds: float,
    scratch: Path,
    threads: int = 1,
    ready: Callable[[list[int]], None] = lambda processes: None,
) -> Measured:
    """Processes that speak as `plain_caffe.py` does, of so many threads each, begun at once; `batches` are theirs.

    `ready` is called with their numbers before they train.
    """
    with ExitStack() as stack:
        log = stack.enter_context((scratch / "plain.log").open("w"))
        processes = [
            stack.enter_context(
                child(command, log=log, talk=True, environment=plain_terms(threads))
            )
            for command in commands
        ]
        for process in processes:
            if _answer(process, START_S, log) != "ready":
                raise MeasureError(f"a plain process did not start: {last_words(log)}")
        ready([process.pid for process in processes])
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
        raise MeasureError(f"a plain process died: {last_words(log)}") from None


def _answer(process: subprocess.Popen[str], seconds: float, log: IO[str]) -> str:
    """One line from a child, within these seconds."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    line = process.stdout.readline() if ready else ""
    if not line:
        raise MeasureError(f"a plain process gave no answer: {last_words(log)}")
    return line.strip()


# ---------------------------------------------------------------- the product


def result_of(run_dir: Path) -> dict[str, Any]:
    """What a run that is over says of itself; raises `MeasureError` if it said nothing."""
    result = read_result(run_dir / RESULT)
    if result is None:
        raise MeasureError(f"{run_dir} has no result")
    return result


def iterations_for(
    seconds: float,
    images_per_s: float,
    batch: int,
    workers: int,
    local_steps: int,
    turns: int = LEAST_TURNS,
) -> int:
    """What so many seconds would do without any cost of exchange, `images_per_s` being one process's."""
    free = seconds * images_per_s * min(workers, cores()) / batch
    return max(turns * workers * local_steps, round(free))


def train(
    net: Bench,
    mode: str,
    workers: int,
    iterations: int,
    options: Sequence[str],
    scratch: Path,
    *,
    seconds: float,
    environment: Mapping[str, str] | None = None,
    watch: Watch | None = None,
) -> Measured:
    """One `speedo train`, by its own log; `watch` is called with its process and run directory."""
    run_dir = scratch / "run"
    command = [
        sys.executable, "-m", "speedo", "train", str(net.solver(net.batch)), "--device", "cpu",
        "--mode", mode, "--workers", str(workers), "--max-iter", str(iterations),
        "--test-interval", "0", "--seed", "1", "--run-dir", str(run_dir), *options,
    ]  # fmt: skip
    with (
        (scratch / "train.log").open("w") as log,
        child(command, log=log, environment=environment) as process,
    ):
        if watch is not None:
            try:
                watch(process, run_dir)
            except MeasureError as error:
                raise MeasureError(f"{error}: {last_words(log)}") from None
        try:
            status = process.wait(START_S + 20 * seconds)
        except subprocess.TimeoutExpired:
            raise MeasureError(f"the run did not end: {last_words(log)}") from None
        if status not in ((0,) if watch is None else (0, CTRL_C)):
            raise MeasureError(f"status {status}: {last_words(log)}")
    return run_measured(run_dir, workers)
