"""One step split over n workers is the step of one solver with the whole batch.

MODES.md: in `sync` the sample-weighted mean of the workers' deltas is exactly the step of plain
Caffe with the whole batch, momentum and decay included. Here without master, store or messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.engines.pycaffe import PycaffeEngine
from speedo.engines.solver import read_solver, solver_for_worker, split_batch
from speedo.exchange.vector import Vector
from tests.support.nets import (
    LENET,
    SMOOTH,
    Sequential,
    net_text,
    records,
    relative_difference,
    write_lmdb,
    write_solver,
)

pytestmark = pytest.mark.caffe
BATCH = 16
RECORDS = 240  # divisible by every number of workers here


def order_of_consumption(shares: tuple[int, ...], batches: int) -> list[int]:
    """The records in the order in which one solver must read them to get the workers' union.

    Rank r of n reads the records r, r + n, ...; batch i of the whole is all workers' batch i.
    """
    workers = len(shares)
    order = []
    for batch in range(batches):
        for rank, share in enumerate(shares):
            order += [rank + workers * (batch * share + place) for place in range(share)]
    return [number % RECORDS for number in order]


def train_split(
    home: Path, body: str, workers: int, iterations: int, **fields: Any
) -> tuple[Vector, Vector, Vector]:
    """Start, weights after split training, weights of plain Caffe after the same records."""
    images, labels = records(RECORDS, 5)
    write_lmdb(home / "shards", images, labels)
    spec = read_solver(write_solver(home, net_text(body, batch=BATCH, train="shards"), **fields))
    shares = split_batch(BATCH, workers)
    engines = []
    for rank, share in enumerate(shares):
        text = solver_for_worker(spec, rank=rank, count=workers, batch_size=share)
        engines.append(PycaffeEngine(text, lr_policy=spec.lr_policy, rank=rank, count=workers))

    order = order_of_consumption(shares, iterations * spec.iter_size)
    write_lmdb(home / "whole", images[order], labels[order])
    whole = read_solver(write_solver(home, net_text(body, batch=BATCH, train="whole"), **fields))
    text = solver_for_worker(whole, rank=0, count=1, batch_size=BATCH)
    plain = Sequential(text, home)

    center = plain.weights()
    start = center.copy()
    local = engines[0].layout.zeros()
    for iteration in range(iterations):
        merged = np.zeros_like(center)
        for engine, share in zip(engines, shares, strict=True):
            engine.set_iteration(iteration)
            engine.load_weights(center)
            engine.step(1)
            engine.read_weights(local)
            merged += np.float32(share / BATCH) * (local - center)
        center += merged
    plain.step(iterations)
    for engine in engines:
        engine.close()
    return start, center, plain.weights()


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize(
    "fields", [{}, {"iter_size": 2}, {"type": '"Nesterov"'}], ids=["sgd", "iter_size", "nesterov"]
)
def test_smooth_net_over_two_hundred_iterations(
    home: Path, workers: int, fields: dict[str, Any]
) -> None:
    start, split, whole = train_split(home, SMOOTH, workers, 200, **fields)
    assert relative_difference(split, whole, start) < 1e-4


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_net_with_kinks_over_ten_iterations(home: Path, workers: int) -> None:
    start, split, whole = train_split(home, LENET, workers, 10)
    assert relative_difference(split, whole, start) < 1e-4


def test_the_comparison_can_fail(home: Path) -> None:
    """Workers that all read the same shard do not add up to the whole batch."""
    images, labels = records(RECORDS, 5)
    write_lmdb(home / "shards", images, labels)
    spec = read_solver(write_solver(home, net_text(SMOOTH, batch=BATCH, train="shards")))
    text = solver_for_worker(spec, rank=0, count=2, batch_size=8)
    engine = PycaffeEngine(text, lr_policy=spec.lr_policy, rank=0, count=2)
    plain = Sequential(solver_for_worker(spec, rank=0, count=1, batch_size=BATCH), home)
    start = plain.weights()
    engine.load_weights(start)
    engine.step(3)
    plain.step(3)
    found = engine.layout.zeros()
    engine.read_weights(found)
    assert relative_difference(found, plain.weights(), start) > 1e-3
