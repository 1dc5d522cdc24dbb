"""k-means with NumPy: each worker adds up its part of the points, and all have the sum."""

import sys

import numpy as np

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
random = np.random.default_rng(1)
true = 4 * random.standard_normal((6, 8))
points = true[random.integers(6, size=1600)] + random.standard_normal((1600, 8))
centers = points[:6].astype(np.float32)
points = points.astype(np.float32)


def nearest(points):
    return ((points[:, None] - centers) ** 2).sum(2)


with speedo.join({"centers": centers}) as run:  # speedo
    own = points[run.rank :: run.size]  # speedo: own = points
    for _ in range(STEPS):
        sums, of = np.zeros((6, 9)), nearest(own).argmin(1)
        np.add.at(sums, of, np.hstack([own, np.ones((len(own), 1))]))
        run.all_reduce(sums, "sum")  # speedo
        filled = sums[:, 8] > 0
        centers[filled] = (sums[:, :8] / np.maximum(sums[:, 8:], 1))[filled]
        run.step()  # speedo
print(f"loss {nearest(points).min(1).mean():.4f}")
if FILE:
    np.savez(FILE, centers=centers)
