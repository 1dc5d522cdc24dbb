"""Logistic regression with NumPy: `speedo run --workers 2 --mode easgd --local-steps 10 examples/logistic.py`."""

import numpy as np
from fashion_mnist import fashion_mnist

import speedo

images, labels = fashion_mnist("train")
w, b = np.zeros((784, 10), np.float32), np.zeros(10, np.float32)


def probabilities(x):
    """Of each class, a row for each image."""
    scores = x @ w + b
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def step(x, y, rate=0.05):
    """One step of SGD, in place; returns the loss."""
    p = probabilities(x)
    loss = -np.log(p[np.arange(len(y)), y] + 1e-9).mean()
    p[np.arange(len(y)), y] -= 1
    np.subtract(w, rate * (x.T @ p) / len(y), out=w)
    np.subtract(b, rate * p.mean(axis=0), out=b)
    return loss


with speedo.join({"w": w, "b": b}) as run:
    for _ in run.epochs(2):
        for x, y in run.share((images, labels), batch=64):
            run.step(loss=step(x, y))

if run.is_first:
    tests, answers = fashion_mnist("t10k")
    print(f"accuracy {(probabilities(tests).argmax(axis=1) == answers).mean():.4f}")
