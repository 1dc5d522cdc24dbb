"""Fits a line to 240 points; its arguments say what goes wrong."""

import os
import sys
import time
from pathlib import Path

import numpy as np

import speedo

fault = sys.argv[1] if len(sys.argv) > 1 else "none"
pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
print("rank of", os.getpid(), "fault", fault, flush=True)
random = np.random.default_rng(3)
x = random.standard_normal((240, 3)).astype(np.float32)
y = x @ np.array([1, -2, 3], np.float32)
w = np.zeros(
    4
    if fault == "shape" and "worker-0.1" not in os.environ.get("SPEEDO_WORKER", "worker-0.1")
    else 3,
    np.float32,
)
if fault == "other-data" and "worker-0.1." in os.environ["SPEEDO_WORKER"]:
    x[100:] = x[:99:-1].copy()
if fault == "early":
    raise ValueError("the file of settings is not there")
if fault == "ends-badly" and "worker-0.3." in os.environ["SPEEDO_WORKER"]:
    time.sleep(1000)
if fault == "loads-long":
    time.sleep(125)
if fault == "never-joins":
    sys.exit()
if fault == "foreign":
    from torch import nn, optim

    speedo.join(nn.Linear(4, 1), optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1))
if fault == "no-length":
    x, y = (zip(x, y, strict=True), None)


def waits_for_ever():
    while True:
        time.sleep(100)


with speedo.join({"w": w}) as run:
    if fault != "never-steps":
        for _ in run.epochs(3):
            for some, right in run.share((x, y) if fault != "no-length" else x, batch=8):
                error = some @ w[:3] - right
                w[:3] -= 0.2 * (some.T @ error) / len(error)
                time.sleep(pause)
                if fault == "ends-badly" and run.rank == 1:
                    time.sleep(1000)
                while fault == "ends-badly" and run.rank == 2 and not Path("go").exists():
                    time.sleep(0.05)
                if (fault, run.rank) in (("nan", 1), ("ends-badly", 2)):
                    w[:] = np.nan
                if fault == "hangs" and "worker-0.1.1" in os.environ["SPEEDO_WORKER"]:
                    waits_for_ever()
                if fault == "raises":
                    raise ValueError("no such column")
                run.step(loss=float((error**2).mean()))
        if fault == "dies-at-end":
            os.kill(os.getpid(), 9)
if fault == "late":
    raise ValueError("the report cannot be written")
print("fitted", run.rank, w.round(3).tolist(), flush=True)
