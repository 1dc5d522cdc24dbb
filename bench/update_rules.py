"""The six solver updates in NumPy beside Caffe's own: milliseconds for one update of the whole vector.

    python -m bench.update_rules [--rounds 9] [--nets lenet googlenet] [--clip]

Caffe's `apply_gradient` copies the gradient into the net and updates there. With `--server-gradient` the master also
loads the center and reads it back: that is the second column. Ours updates the center where it lies. `--clip` has
every solver clip its gradients. Prints medians of processor time, for all of it is the work of one thread; the ways
take turns, so that they see the same machine.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.support import table
from bench.support.arguments import parser_for, rounds
from bench.support.machine import heading
from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text, to_text
from speedo.engines.pycaffe import PycaffeEngine
from speedo.engines.solver import read_solver, solver_for_server
from speedo.engines.solver_update import SolverUpdate, multipliers
from speedo.engines.update_rules import RULES, SolverFields
from tests.support.bundled_nets import SHAPES, Bench

NETS = ("lenet", "googlenet")  # 1.7 and 53.5 MB
SMALL_MB = 20.0  # below it an update takes less than some ms, and chance weighs more
WITHOUT_MOMENTUM = ("AdaGrad", "RMSProp")
HEADING = ["apply_gradient", "load, apply, read", "ours", "ours of apply", "least to most"]


def seconds(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began


def measure(net: Bench, kind: str, clip: bool, asked_rounds: int) -> tuple[float, list[str]]:
    """The vector's MB, and a row of the table."""
    spec = read_solver(net.solver(1))
    parameter = parse_text(solver_for_server(spec), caffe_schema().SolverParameter())
    parameter.type = kind
    parameter.momentum = 0.0 if kind in WITHOUT_MOMENTUM else 0.9
    parameter.clip_gradients = 1.0 if clip else -1.0
    engine = PycaffeEngine(to_text(parameter), lr_policy=spec.lr_policy, folder=spec.folder)
    layout = engine.layout
    rule = SolverUpdate(
        SolverFields.from_solver(parameter),
        layout,
        multipliers(parameter.train_net_param, layout),
        spec.lr_policy,
    )
    gradient = np.random.default_rng(0).standard_normal(layout.size, np.float32)
    gradient *= np.float32(1e-3)
    center, copy = layout.zeros(), layout.zeros()
    engine.read_weights(center)

    def as_the_master() -> None:
        engine.load_weights(copy)
        engine.apply_gradient(gradient)
        engine.read_weights(copy)

    times = []
    megabytes = layout.nbytes / 1e6
    for _ in range(asked_rounds * max(1, round(SMALL_MB / megabytes)) + 1):
        times.append(
            (
                seconds(lambda: engine.apply_gradient(gradient)),
                seconds(as_the_master),
                seconds(lambda: rule.update(center, gradient, 0)),
            )
        )
    engine.close()
    apply, whole, ours = zip(*times[1:], strict=True)
    ratios = [mine / caffe for mine, caffe in zip(ours, apply, strict=True)]
    cells = [f"{1e3 * statistics.median(column):.2f}" for column in (apply, whole, ours)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return megabytes, [kind, *cells, f"{statistics.median(ratios):.2f}", spread]


def measure_net(name: str, folder: Path, clip: bool, asked_rounds: int) -> table.Table:
    """A row for each solver type."""
    net = Bench.make(name, folder)
    found = [measure(net, kind, clip, asked_rounds) for kind in RULES]
    return [[f"ms, {name}, {found[0][0]:.1f} MB", *HEADING], *(row for _, row in found)]


def main() -> int:
    parser = parser_for("bench.update_rules", __doc__, default_rounds=9)
    parser.add_argument("--nets", nargs="+", choices=list(SHAPES), default=list(NETS))
    parser.add_argument("--clip", action="store_true", help="every solver clips its gradients")
    asked = parser.parse_args()
    heading("bench.update_rules")
    write = table.markdown if asked.markdown else table.text
    print(f"medians of {rounds(asked.rounds)}, of more for small vectors")
    for name in asked.nets:
        with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
            print(
                f"\n{write(measure_net(name, Path(folder), asked.clip, asked.rounds))}", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
