"""One of our engines alone, without master and exchange, as `plain_caffe.py` is plain Caffe.

    python -m bench.support.engine_process SOLVER SECONDS ENGINE DEVICE PRECISION

Says `ready` after three steps, waits for a line, trains for so many seconds (ten steps at least), and prints as JSON
when each step ended, on the clock that all processes of a machine share, and the share of a core that it got.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from speedo.engines.make import EngineChoice, make_engine, prepare_process
from speedo.engines.solver import SolverOverrides, read_solver, solver_for_worker


def main() -> None:
    path, seconds, engine, device, precision = sys.argv[1:]
    choice = EngineChoice(engine, device, precision)
    prepare_process(choice)
    spec = read_solver(Path(path), overrides=SolverOverrides(engine=choice.engine))
    text = solver_for_worker(spec, rank=0, count=1, batch_size=spec.batch_size)
    one = make_engine(choice, text, lr_policy=spec.lr_policy, folder=spec.folder)
    one.step(3)
    print("ready", flush=True)
    if not sys.stdin.readline():
        return  # whoever started us is gone
    ends: list[float] = []
    began, worked = time.monotonic(), time.process_time()
    while len(ends) < 10 or ends[-1] < began + float(seconds):
        one.step(1)
        ends.append(time.monotonic())
    core = (time.process_time() - worked) / (ends[-1] - began)
    print(json.dumps({"ends": ends, "core": core}))
    one.close()


if __name__ == "__main__":
    main()
