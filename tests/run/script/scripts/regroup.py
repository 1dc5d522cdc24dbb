"""Worker 1 dies between two calls, and comes again; says of how many workers each call was. Its argument is a file."""

import os
import sys
import time
from itertools import groupby
from pathlib import Path

import numpy as np

import speedo
from speedo.errors import TeamBrokenError

died = Path(sys.argv[1])
w = np.zeros(2, np.float32)


def meet():
    sizes = []
    while not (died.exists() and sizes[-1:] == [3] and (run.rank == 1 or "broken" in sizes)):
        try:
            ranks = run.all_gather(np.array([run.rank], np.int64)).ravel().tolist()
            sizes.append(len(ranks))
            mean = run.all_reduce(np.array([float(run.rank)]), "mean")
            assert mean == np.mean(ranks), (mean, ranks)
        except TeamBrokenError:
            sizes.append("broken")
        if run.rank == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), 9)
        time.sleep(0.01)
    print("met", *(size for size, _ in groupby(sizes)), flush=True)


with speedo.join({"w": w}) as run:
    has_met = False
    for _ in run.epochs(1):
        for _ in run.share(np.arange(60)):
            w -= 0.1
            run.step()
            if not has_met:
                has_met = True
                meet()
