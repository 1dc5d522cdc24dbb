"""Fits a line, and writes down what its callbacks get; an argument names the one that raises."""

import sys
import time

import numpy as np

import speedo

raises = sys.argv[1] if len(sys.argv) > 1 else ""
seen = []


def told(name):
    def call(event):
        seen.append(event)
        if name == raises:
            raise LookupError(f"{name} was called")

    return call


names = ("on_result", "on_test", "on_join", "on_leave", "on_checkpoint")
random = np.random.default_rng(3)
x = random.standard_normal((240, 3)).astype(np.float32)
y = x @ np.array([1, -2, 3], np.float32)
w = np.zeros(3, np.float32)
try:
    with speedo.join({"w": w}, **{name: told(name) for name in names}) as run:
        for _ in run.epochs(3):
            for some, right in run.share((x, y), batch=8):
                error = some @ w - right
                w -= 0.02 * (some.T @ error) / len(error)
                time.sleep(0.05)
                if raises == "on_leave" and run.rank == 1 and run.iteration > 10:
                    sys.exit("worker 1 ends")
                run.step(loss=float((error**2).mean()))
finally:
    for event in seen:
        print("told", run.rank, event, flush=True)
print("fitted", w.round(1).tolist(), flush=True)
np.save(f"w{run.rank}.npy", w)
