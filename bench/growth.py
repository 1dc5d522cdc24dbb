"""Time per exchange against the size of the model and against the number of workers.

    python -m bench.growth [--sizes 0.4 1.7 13 53 244] [--workers 1 2 4 8 16] [--picture FILE.png]

The nets are one inner product each, with batch 1: many bytes, little arithmetic. Against size: one worker, and an
exchange is its turn less the step of plain Caffe with the same net in the same round. Against workers: a net of
`--small` MB; an exchange is the time between two results at the master, whose share of a core is told. Prints medians
and how well a line in bytes fits. Status 1 if a measurement failed.
"""

from __future__ import annotations

import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.support import table
from bench.support.arguments import parser_for, rounds, seconds, size, whole
from bench.support.figures import Measured, median_part, median_rate
from bench.support.machine import heading, status_of
from bench.support.processes import end_by_signals
from bench.support.runs import free_running, plain_caffe
from bench.support.throughput import Round, Row, rounds_of
from bench.support.timed import train_for
from tests.support.bundled_nets import Bench

# MB: CIFAR-10 full, LeNet, a quarter of and all GoogLeNet, AlexNet
SIZES = (
    0.4,
    1.7,
    13.0,
    53.0,
    244.0,
)
WORKERS = (1, 2, 4, 8, 16)
KINDS = ("master", "redis")
Say = Callable[[str], None]
Shares = dict[str, list[dict[str, float]]]
Point = tuple[int, float, float]  # workers, milliseconds per exchange, the master's share of a core


@dataclass(frozen=True, slots=True)
class Line:
    """milliseconds = constant + per_mb * MB; `residuals` are relative to what was measured."""

    constant: float
    per_mb: float
    residuals: tuple[float, ...]


def fit_line(sizes: Sequence[float], times: Sequence[float]) -> Line:
    """The line with the least squares of relative residuals: the largest model must not drown the others."""
    x, y = np.asarray(sizes, float), np.asarray(times, float)
    rows = np.stack([np.ones_like(x), x], axis=1) / y[:, None]
    (constant, per_mb), *_ = np.linalg.lstsq(rows, np.ones_like(y), rcond=None)
    residuals = (constant + per_mb * x - y) / y
    return Line(float(constant), float(per_mb), tuple(map(float, residuals)))


def shape_of(megabytes: float) -> tuple[int, int]:
    """Inputs and outputs of a layer of about so many MB of weights."""
    outputs = 100 if megabytes < 10 else 1000
    return max(1, round(megabytes * 1e6 / 4 / outputs)), outputs


def exchange_of(done: Round, plain: str, run: str) -> float | None:
    """Milliseconds of a turn beyond the step of plain Caffe, in one round."""
    if plain in done and run in done:
        return done[run].parts["turn"] - done[plain].parts["turn"]
    return None


# ---------------------------------------------------------------- against the size


def plain_name(megabytes: float) -> str:
    return f"{megabytes:g} MB, plain Caffe"


def run_name(megabytes: float) -> str:
    return f"{megabytes:g} MB, 1 worker"


def measure_sizes(
    sizes: Sequence[float],
    repeats: int,
    length_s: float,
    mode: str,
    options: Sequence[str],
    folder: Path,
    say: Say,
) -> tuple[list[Round], list[str]]:
    nets = {mb: Bench.one_layer(f"{mb:g}", folder / f"{mb:g}", *shape_of(mb)) for mb in sizes}
    of_row = {run_name(mb): net for mb, net in nets.items()}
    of_row |= {plain_name(mb): net for mb, net in nets.items()}
    rows = [
        row for mb in sizes for row in (Row(plain_name(mb), (1,)), Row(run_name(mb), (1,), mode))
    ]

    def measure(row: Row, done: Round, scratch: Path) -> Measured:
        net = of_row[row.name]
        if row.mode is None:
            return free_running([plain_caffe(net, 1, length_s)], (1,), length_s, scratch)
        return train_for(net, mode, 1, options, scratch, length_s)[0]

    return rounds_of("size", rows, repeats, measure, say)


def exchange_times(sizes: Sequence[float], measured: Sequence[Round]) -> dict[float, list[float]]:
    """Every round's milliseconds of an exchange, for the sizes that have any."""
    times = {}
    for mb in sizes:
        seen = [exchange_of(one, plain_name(mb), run_name(mb)) for one in measured]
        if any(value is not None for value in seen):
            times[mb] = [value for value in seen if value is not None]
    return times


def size_table(
    times: dict[float, list[float]], measured: Sequence[Round], line: Line
) -> table.Table:
    parts = ("fetch", "publish", "rest")
    lines = [
        ["MB", "step ms", "turn ms", "exchange ms", "least to most", *parts, "GB/s", "off the line"]
    ]
    for (mb, seen), residual in zip(times.items(), line.residuals, strict=True):
        middle = statistics.median(seen)
        told = [median_part(measured, run_name(mb), part) for part in parts]
        ends = [median_part(measured, name(mb), "turn") for name in (plain_name, run_name)]
        lines.append(
            [
                f"{mb:g}",
                *("" if one is None else f"{one:.2f}" for one in ends),
                f"{middle:.2f}",
                f"{min(seen):.2f} to {max(seen):.2f}",
                *("" if one is None else f"{one:.2f}" for one in told),
                f"{2 * mb / middle:.2f}",
                f"{residual:+.1%}",
            ]
        )
    return lines


# ---------------------------------------------------------------- against the workers


def workers_name(mode: str, count: int) -> str:
    return f"{mode}, {count}"


def measure_workers(
    counts: Sequence[int],
    repeats: int,
    length_s: float,
    modes: Sequence[str],
    options: Sequence[str],
    net: Bench,
    say: Say,
) -> tuple[list[Round], Shares, list[str]]:
    rows = [
        Row(workers_name(mode, count), (1,) * count, mode) for mode in modes for count in counts
    ]
    shares: Shares = {}

    def measure(row: Row, done: Round, scratch: Path) -> Measured:
        assert row.mode is not None
        measured, taken = train_for(
            net, row.mode, len(row.batches), ["--whole-batch", *options], scratch, length_s, KINDS
        )
        shares.setdefault(row.name, []).append(taken)
        return measured

    done, failures = rounds_of("workers", rows, repeats, measure, say)
    return done, shares, failures


def workers_table(
    modes: Sequence[str], counts: Sequence[int], measured: Sequence[Round], shares: Shares
) -> table.Table:
    lines = [
        ["mode, workers", "results/s", "ms per exchange", "turn ms", "master's share of a core",
         "master's ms per result", "Redis's share of a core"]
    ]  # fmt: skip
    for name in (workers_name(mode, count) for mode in modes for count in counts):
        rate, turn = median_rate(measured, name), median_part(measured, name, "turn")
        if rate is None or turn is None:
            lines.append([name, "failed", *[""] * 5])
            continue
        master, redis = (statistics.median(one[kind] for one in shares[name]) for kind in KINDS)
        lines.append(
            [
                name,
                f"{rate:,.0f}",
                f"{1000 / rate:.2f}",
                f"{turn:.2f}",
                f"{master:.0%}",
                f"{1000 * master / rate:.2f}",
                f"{redis:.0%}",
            ]
        )
    return lines


def points_of(
    modes: Sequence[str], counts: Sequence[int], measured: Sequence[Round], shares: Shares
) -> dict[str, list[Point]]:
    """Workers, milliseconds per exchange and the master's share, for each mode."""
    points: dict[str, list[Point]] = {}
    for mode in modes:
        for count in counts:
            rate = median_rate(measured, workers_name(mode, count))
            if rate is not None:
                seen = [one["master"] for one in shares[workers_name(mode, count)]]
                points.setdefault(mode, []).append((count, 1000 / rate, statistics.median(seen)))
    return points


# ---------------------------------------------------------------- the picture


def draw(
    path: Path,
    times: Mapping[float, Sequence[float]],
    line: Line,
    modes: Mapping[str, Sequence[Point]],
) -> None:
    """Two panels as PNG: milliseconds against MB with the fitted line, and against workers for each mode."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    if times:
        x = np.array(list(times))
        middle = np.array([statistics.median(one) for one in times.values()])
        below = middle - [min(one) for one in times.values()]
        above = [max(one) for one in times.values()] - middle
        left.errorbar(x, middle, [below, above], fmt="o", label="measured, least to most")
        wide = np.geomspace(x.min(), x.max(), 50)
        fitted = f"{line.constant:.2f} ms + {line.per_mb:.3f} ms per MB"
        left.plot(wide, line.constant + line.per_mb * wide, label=fitted)
        left.set(xscale="log", yscale="log", xlabel="model, MB", ylabel="exchange, ms")
        left.legend()
    shares = right.twinx()
    for mode, points in modes.items():
        workers = [point[0] for point in points]
        (drawn,) = right.plot(workers, [point[1] for point in points], "o-", label=mode)
        shares.plot(workers, [point[2] for point in points], "x--", color=drawn.get_color())
    ticks = sorted({point[0] for points in modes.values() for point in points})
    right.set(xlabel="workers", ylabel="exchange, ms (points)", xticks=ticks)
    most = max((point[1] for points in modes.values() for point in points), default=1.0)
    right.set_ylim(0, 1.15 * most)
    shares.set(ylabel="master's share of a core (crosses)", ylim=(0, 1.05))
    if modes:
        right.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


# ---------------------------------------------------------------- the program


def main() -> int:
    parser = parser_for("bench.growth", __doc__)
    parser.add_argument("--sizes", nargs="*", type=size, default=list(SIZES), metavar="MB")
    parser.add_argument("--workers", nargs="*", type=whole, default=list(WORKERS), metavar="N")
    parser.add_argument("--modes", nargs="+", default=["sync", "async"], metavar="MODE")
    parser.add_argument("--small", type=size, default=1.7, metavar="MB", help="against workers")
    parser.add_argument("--seconds", type=seconds, default=4.0, metavar="S", help="of each run")
    parser.add_argument("--options", default="", help="more options of speedo train")
    parser.add_argument("--picture", type=Path, metavar="FILE.png")
    asked = parser.parse_args()
    end_by_signals()
    _, say = heading("bench.growth")
    options = shlex.split(asked.options)
    write = table.markdown if asked.markdown else table.text
    medians = f"medians of {rounds(asked.rounds)} of {asked.seconds:g} s"
    times: dict[float, list[float]] = {}
    line = Line(0.0, 0.0, ())
    done: list[Round] = []
    shares: Shares = {}
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
        if asked.sizes:
            by_size, failures = measure_sizes(
                asked.sizes, asked.rounds, asked.seconds, asked.modes[0], options, Path(folder), say
            )
            times = exchange_times(asked.sizes, by_size)
            if times:
                line = fit_line(list(times), [statistics.median(one) for one in times.values()])
                print(
                    f"\nAgainst size, 1 worker, {asked.modes[0]}: {medians}\n\n"
                    f"{write(size_table(times, by_size, line))}\n\n"
                    f"exchange = {line.constant:.2f} ms + {line.per_mb:.3f} ms per MB; off by "
                    f"{max(map(abs, line.residuals)):.1%} at most",
                    flush=True,
                )
        if asked.workers:
            net = Bench.one_layer("small", Path(folder) / "small", *shape_of(asked.small))
            done, shares, failed = measure_workers(
                asked.workers, asked.rounds, asked.seconds, asked.modes, options, net, say
            )
            failures += failed
            print(
                f"\nAgainst workers, {asked.small:g} MB: {medians}\n\n"
                f"{write(workers_table(asked.modes, asked.workers, done, shares))}",
                flush=True,
            )
    if asked.picture is not None:
        draw(asked.picture, times, line, points_of(asked.modes, asked.workers, done, shares))
    return status_of(failures)


if __name__ == "__main__":
    sys.exit(main())
