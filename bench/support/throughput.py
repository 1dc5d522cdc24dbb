"""Rounds of measurements of one net: sequential Caffe, free-running Caffe processes, and every mode.

The figure of a mode is its exchange efficiency: images/s of n workers over images/s of n free-running
processes of plain pycaffe with the same batch each, on the same machine and in the same round.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.support.figures import Measured, MeasureError, mean_of
from bench.support.runs import LEAST_TURNS, free_running, iterations_for, plain_caffe, train
from speedo.engines.solver import split_batch
from tests.support.bundled_nets import Bench

MODES = ("sync", "async", "partial", "weed-out", "easgd", "hybrid")
SEQUENTIAL = "sequential Caffe"
CYCLES = 4  # of hybrid's two phases in a run

Round = dict[str, Measured]
Measure = Callable[["Row", Round, Path], Measured]  # a row, the round so far, a folder of its own
Attempt = Callable[["Row"], Measured | None]  # none if it failed, which has been told then


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. Without a mode it is plain processes, one for each of `batches`."""

    name: str
    batches: tuple[int, ...]
    mode: str | None = None
    split: bool = False
    baseline: str | None = None
    local_steps: int = 1
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Variant:
    """Options of `speedo train` under a name, beside the run without them."""

    name: str
    options: tuple[str, ...]


AS_IT_IS = Variant("", ())


@dataclass(frozen=True, slots=True)
class Settings:
    """What one call was asked for."""

    workers: int
    seconds: float
    repeats: int
    local_steps: tuple[int, ...]
    modes: tuple[str, ...]
    variants: tuple[Variant, ...] = (AS_IT_IS,)
    split: bool = True
    turns: int = LEAST_TURNS
    around: bool = True
    threads: int = 1


def rows_of(batch: int, settings: Settings) -> list[Row]:
    """What is measured for a net of this batch; whatever has a baseline comes after it."""
    n = settings.workers
    whole, split = (batch,) * n, split_batch(batch, n)
    free, free_split = f"{n} free-running", f"{n} free-running, batch split"
    rows = [Row(SEQUENTIAL, (batch,)), Row(free, whole)]
    kinds = [(tau, variant) for tau in settings.local_steps for variant in settings.variants]

    def name(mode: str, tau: int, variant: Variant) -> str:
        steps = f"{tau} local step{'s' * (tau > 1)}" if len(settings.local_steps) > 1 else ""
        return ", ".join(filter(None, (mode, steps, variant.name)))

    rows += [
        Row(name(mode, tau, variant), whole, mode, False, free, tau, variant.options)
        for tau, variant in kinds
        for mode in settings.modes
    ]
    if "sync" in settings.modes and n > 1 and settings.split:
        rows.append(Row(free_split, split))
        rows += [
            Row(
                name("sync, batch split", tau, variant),
                split,
                "sync",
                True,
                free_split,
                tau,
                variant.options,
            )
            for tau, variant in kinds
        ]
    return rows


def turned(rows: Sequence[Row], number: int) -> list[Row]:
    """The rows of round `number`: the first of them first, the others from another one each time."""
    rest = list(rows[1:])
    place = 3 * number % len(rest)
    return [rows[0], *rest[place:], *rest[:place]]


def measure_net(
    net: Bench, settings: Settings, say: Callable[[str], None]
) -> tuple[list[Round], list[str]]:
    """All rounds of one net, and what failed, a sentence each."""

    def measure(row: Row, done: Round, scratch: Path) -> Measured:
        if row.mode is None:
            commands = [plain_caffe(net, batch, settings.seconds) for batch in row.batches]
            return free_running(commands, row.batches, settings.seconds, scratch, settings.threads)
        if SEQUENTIAL not in done:
            raise MeasureError("the length of the run cannot be told without sequential Caffe")
        return _mode(net, row, settings, done[SEQUENTIAL], scratch)

    rows = rows_of(net.batch, settings)
    return rounds_of(net.name, rows, settings.repeats, measure, say, around=settings.around)


def rounds_of(
    title: str,
    rows: Sequence[Row],
    repeats: int,
    measure: Measure,
    say: Callable[[str], None],
    *,
    around: bool = False,
) -> tuple[list[Round], list[str]]:
    """Every row in every round, in an order that turns; and what failed, a sentence each.

    With `around` what a row is compared with is measured right before it and right after it.
    """
    rounds: list[Round] = []
    failures: list[str] = []

    def attempt(number: int, done: Round, row: Row) -> Measured | None:
        label = f"{title}, round {number + 1} of {repeats}, {row.name}"
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="speedo-bench-") as scratch:
            try:
                measured = measure(row, done, Path(scratch))
            except MeasureError as error:
                failures.append(f"{label}: {error}")
                say(failures[-1])
                return None
        took = time.monotonic() - began
        say(f"{label}: {measured.images_per_s:,.0f} images/s ({took:.0f} s)")
        return measured

    for number in range(repeats):
        done: Round = {}
        rounds.append(done)
        walk = _around if around else _each
        for row, measured in walk(turned(rows, number), partial(attempt, number, done)):
            done[row.name] = measured
    return rounds, failures


def _each(rows: Sequence[Row], attempt: Attempt) -> Iterator[tuple[Row, Measured]]:
    for row in rows:
        measured = attempt(row)
        if measured is not None:
            yield row, measured


def _around(rows: Sequence[Row], attempt: Attempt) -> Iterator[tuple[Row, Measured]]:
    """Each row with a baseline between two measurements of that; of all of these the mean stands in the round."""
    several: dict[str, list[Measured]] = {row.baseline: [] for row in rows if row.baseline}
    by_name = {row.name: row for row in rows}

    def beside(name: str) -> Measured | None:
        measured = attempt(by_name[name])
        if measured is not None:
            several[name].append(measured)
        return measured

    latest: tuple[str, Measured | None] = ("", None)
    for row in rows:
        if row.baseline is None:
            if row.name not in several:
                yield from _each([row], attempt)
            continue
        before = latest[1] if latest[0] == row.baseline else beside(row.baseline)
        measured, after = attempt(row), beside(row.baseline)
        latest = (row.baseline, after)
        near = [one for one in (before, after) if one is not None]
        if measured is not None and near:
            rate = mean_of(near).images_per_s
            yield row, replace(measured, beside={row.baseline: rate})
    for name, found in several.items():
        if found:
            yield by_name[name], mean_of(found)


def _mode(
    net: Bench, row: Row, settings: Settings, sequential: Measured, scratch: Path
) -> Measured:
    """One `speedo train`, as long as `seconds` would be without any cost of exchange."""
    tau, seconds = row.local_steps, settings.seconds
    rate = sequential.images_per_s
    iterations = iterations_for(seconds, rate, net.batch, settings.workers, tau, settings.turns)
    options = ["--split-batch" if row.split else "--whole-batch", *row.options]
    options += ["--threads", str(settings.threads)]
    if row.mode == "hybrid":
        length = max(1, iterations // (2 * CYCLES))
        for mode in ("sync", "async"):
            options += ["--phase", f"{mode}:{length},local_steps={tau}"]
    else:
        options += ["--local-steps", str(tau)]
    longest = max(seconds, iterations * net.batch / rate)
    return train(
        net, str(row.mode), settings.workers, iterations, options, scratch, seconds=longest
    )
