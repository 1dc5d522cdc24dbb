"""Every collective once, before, in and after the training; says what came of it."""

import numpy as np

import speedo

w = np.zeros(2, np.float32)
with speedo.join({"w": w}) as run:
    ranks = run.all_gather(np.array([run.rank], np.int64))
    total = run.all_reduce(np.full(3, run.rank + 1.0))
    best = run.all_reduce(np.array([run.rank], np.float32), "max")
    setting = run.broadcast(np.array([7.0 if run.rank == 0 else 0.0]))
    for _ in run.epochs(2):
        for _ in run.share(np.arange(40), batch=4):
            w -= 0.1
            run.step()
        # Ten batches for three workers: who has none of the last round comes here a round earlier.
        met = run.all_reduce(np.array([1.0]))
    run.barrier()
print(
    "collected",
    ranks.ravel().tolist(),
    total.tolist(),
    best.tolist(),
    setting.tolist(),
    met,
    flush=True,
)
