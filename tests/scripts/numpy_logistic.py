"""Logistic regression with NumPy alone, its gradient by hand."""

import sys

import numpy as np

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
random = np.random.default_rng(1)
true = random.standard_normal((20, 5)).astype(np.float32)


def records(count):
    x = random.standard_normal((count, 20)).astype(np.float32)
    return x, (x @ true + random.gumbel(size=(count, 5))).argmax(1)


def batches(arrays):
    for start in range(0, len(arrays[0]), BATCH):
        yield [one[start : start + BATCH] for one in arrays]


train, (test_x, test_y) = records(16 * STEPS // 5), records(2000)
w, b = np.zeros((20, 5), np.float32), np.zeros(5, np.float32)
with speedo.join({"w": w, "b": b}) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for x, y in run.share(train, BATCH):  # speedo: for x, y in batches(train):
            logits = x @ w + b
            e = np.exp(logits - logits.max(1, keepdims=True))
            p = e / e.sum(1, keepdims=True)
            p[np.arange(len(y)), y] -= 1
            w -= 0.3 * x.T @ p / len(y)
            b -= 0.3 * p.mean(0)
            run.step()  # speedo
print(f"accuracy {((test_x @ w + b).argmax(1) == test_y).mean():.4f}")
if FILE:
    np.savez(FILE, w=w, b=b)
