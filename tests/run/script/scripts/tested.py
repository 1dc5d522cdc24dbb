"""Fits a line, and tests after each epoch what the run has come to.

Its argument is "shared" where all workers make a test, with "-dies" where worker 1 dies in the first; then a file, that
worker 0 makes once it takes part.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

import speedo

how = sys.argv[1] if len(sys.argv) > 1 else ""
dies = how.endswith("dies")
random = np.random.default_rng(3)
x = random.standard_normal((240, 3)).astype(np.float32)
y = x @ np.array([1, -2, 3], np.float32)
w = np.zeros(3, np.float32)


def measure():
    if dies and run.rank == 1:
        os.kill(os.getpid(), 9)
    time.sleep(0.5)
    return {"loss": loss(), "first": w[0]}


def loss():
    return float(((x @ w - y) ** 2).mean())


def measure_part(batches):
    total = seen = 0
    for some, right in batches:
        if dies and run.rank == 1:
            while not Path(sys.argv[2]).exists():
                time.sleep(0.02)
            os.kill(os.getpid(), 9)
        if dies:
            Path(sys.argv[2]).touch()
        total += float(((some @ w - right) ** 2).sum())
        seen += len(some)
    return {"loss": total / seen, "whole": loss()}


with speedo.join({"w": w}) as run:
    for epoch in run.epochs(3):
        for some, right in run.share((x, y), batch=8):
            if dies:  # worker 1 comes to the first test first
                time.sleep(0.05 if run.rank == 1 else 0.2)
            error = some @ w - right
            np.subtract(w, 0.05 * (some.T @ error) / len(error), out=w)
            run.step(loss=float((error**2).mean()))
            if dies and run.rank == 1 and run.iteration > 10:
                break
        before = w.copy()
        found = run.test(measure_part, (x, y), batch=7) if "shared" in how else run.test(measure)
        if found is not None:
            print("measured", run.rank, epoch, round(found["loss"], 4), flush=True)
        assert np.array_equal(w, before)
print("stopped" if run.should_stop else "fitted", run.rank, flush=True)
