"""Steps of the engine on PyTorch in a process whose data may take only so many bytes.

    python -m bench.support.limited_steps SOLVER STEPS MICRO_BATCH|whole BYTES THREADS

Prints as JSON images/s after one step to warm up, the records of a part, by how many bytes the process grew from the
built net to its largest, and the estimate of that; or what the engine said.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import psutil

from speedo.engines.make import EngineChoice, prepare_process
from speedo.engines.solver import SolverOverrides, read_solver, solver_for_worker
from speedo.errors import EngineError


def main() -> None:
    path, steps, micro_batch, limit, threads = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))
    choice = EngineChoice("torch", "cpu", micro_batch="" if micro_batch == "whole" else micro_batch)
    prepare_process(choice, int(threads))
    from speedo.engines.pytorch.engine import PytorchEngine

    spec = read_solver(Path(path), overrides=SolverOverrides(engine="torch"))
    text = solver_for_worker(spec, rank=0, count=1, batch_size=spec.batch_size)
    options = {"lr_policy": spec.lr_policy, "folder": spec.folder, "threads": int(threads)}
    one = PytorchEngine(text, micro_batch=choice.micro_batch, **options)
    built = psutil.Process().memory_info().rss
    try:
        one.step(1)
        began = time.monotonic()
        one.step(int(steps))
        seconds = time.monotonic() - began
    except EngineError as error:
        print("\n" + json.dumps({"problem": str(error)}))
        return
    part = one._micro.size if one._micro is not None else spec.batch_size
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - built
    rate = int(steps) * spec.batch_size / seconds
    estimate = one.memory().of_parts(part) - one.layout.nbytes  # the weights were there
    found = {"images_per_s": rate, "part": part, "taken": taken, "estimate": estimate}
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
