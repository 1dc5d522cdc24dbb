"""When each part of a gradient is ready, what of a ring's time that hides, and what it costs to report the parts.

    python -m bench.early [--nets lenet cifar10_full alexnet googlenet] [--engines caffe torch] [--hosts 4] [--rounds 5]

One process and one thread. Gradients with and without a listener take turns. `ready` is how long before the end of the
whole gradient so much of the vector was final, the last layers first. A ring moves 2 (n - 1) / n of the model over each
link; `hidden` is the share of that time that lies before the end of the gradient, if values are sent in the order in
which they are ready and the link is never idle while some are. Medians.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.support import table
from bench.support.arguments import parser_for, whole
from bench.support.machine import heading
from bench.support.processes import end_by_signals
from speedo.engines.make import EngineChoice, let_others_run, make_engine, prepare_process
from speedo.engines.solver import SolverOverrides, read_solver, solver_for_worker
from tests.support.bundled_nets import Bench

NETS = ("lenet", "cifar10_full", "alexnet", "googlenet")
LINKS = {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9}
SHARES = (0.5, 0.9, 0.99)
Parts = Sequence[tuple[float, int]]  # seconds before the end, and the values that were ready then


def ready_before_end(parts: Parts, share: float) -> float:
    """Seconds before the end at which this share of all values was ready."""
    wanted, found = share * sum(values for _, values in parts), 0
    for before, values in parts:
        found += values
        if found >= wanted:
            return before
    return 0.0


def hidden(parts: Parts, seconds: float) -> float:
    """The share of a ring's `seconds` that lies before the end of the gradient."""
    each = seconds / sum(values for _, values in parts)
    free = -parts[0][0]  # when the link has sent what was ready, with the end of the gradient as 0
    for before, values in parts:
        free = max(free, -before) + each * values
    return 1.0 - max(free, 0.0) / seconds


def measure(net: Bench, engine: str, rounds: int) -> tuple[Parts, float, float]:
    """The parts, and the medians of a gradient's seconds without and with a listener."""
    choice = EngineChoice(engine, "cpu")
    prepare_process(choice)
    let_others_run(choice, True)
    spec = read_solver(net.solver(net.batch), overrides=SolverOverrides(engine=choice.engine))
    text = solver_for_worker(spec, rank=0, count=1, batch_size=spec.batch_size)
    one = make_engine(choice, text, lr_policy=spec.lr_policy, folder=spec.folder)
    out, alone, heard = one.layout.zeros(), [], []
    ready: dict[int, list[float]] = {}  # by the number of the report
    sizes: list[int] = []
    one.gradient(1, out)
    for _ in range(rounds):
        began = time.perf_counter()
        one.gradient(1, out)
        alone.append(time.perf_counter() - began)
        times: list[tuple[float, int]] = []
        began = time.perf_counter()
        one.gradient(1, out, lambda a, z: times.append((time.perf_counter(), z - a)))  # noqa: B023
        ended = time.perf_counter()
        heard.append(ended - began)
        sizes = [values for _, values in times]
        for number, (then, _) in enumerate(times):
            ready.setdefault(number, []).append(ended - then)
    one.close()
    parts = [(statistics.median(ready[number]), size) for number, size in enumerate(sizes)]
    return parts, statistics.median(alone), statistics.median(heard)


def row(name: str, parts: Parts, alone: float, heard: float, hosts: int) -> list[str]:
    values = sum(size for _, size in parts)
    cells = [
        name, f"{4e-6 * values:,.1f}", str(len(parts)), f"{1e3 * alone:,.1f}", f"{1e3 * (heard - alone):+.2f}",
        *(f"{1e3 * ready_before_end(parts, share):,.1f}" for share in SHARES),
    ]  # fmt: skip
    for bits in LINKS.values():
        seconds = 2 * (hosts - 1) / hosts * 32 * values / bits
        cells.append(f"{1e3 * seconds:,.0f}, {hidden(parts, seconds):.0%}")
    return cells


def main() -> int:
    parser = parser_for("bench.early", __doc__)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--engines", nargs="+", choices=["caffe", "torch"], default=["caffe"])
    parser.add_argument("--hosts", type=whole, default=4, metavar="N", help="of the ring")
    asked = parser.parse_args()
    if asked.hosts < 2:
        parser.error(f"--hosts {asked.hosts}: a ring has 2 or more")
    end_by_signals()
    _, say = heading("bench.early")
    lines = [[
        "", "MB", "parts", "gradient ms", "reports ms", *(f"{share:.0%} ready" for share in SHARES),
        *(f"ring ms, hidden: {link}" for link in LINKS),
    ]]  # fmt: skip
    for engine in asked.engines:
        for name in asked.nets:
            say(f"{name}, {engine}")
            with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
                net = Bench.make(name, Path(folder) / name)
                found = measure(net, engine, asked.rounds)
            lines.append(row(f"{name}, {engine}, batch {net.batch}", *found, asked.hosts))
    write = table.markdown if asked.markdown else table.text
    print(f"\n{asked.hosts} hosts; `ready` in ms before the end of the gradient\n\n{write(lines)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
