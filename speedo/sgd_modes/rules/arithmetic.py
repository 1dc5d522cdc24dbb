"""The arithmetic that rules share: in place, in one pass.

Vectors are processed in blocks, so that intermediate results stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from speedo.exchange.vector import Vector
from speedo.sgd_modes.rules.base import Contribution

BLOCK = 1 << 18  # float32 values: 1 MiB; `bench.store_speed` tells what a size is worth


_spare: list[Vector] = []  # taken and put back whole, so threads may share it


@contextmanager
def scratch_blocks(count: int) -> Iterator[list[Vector]]:
    """Blocks for intermediate results, reused: allocating fresh pages takes longer than the arithmetic."""
    taken = [_spare.pop() if _spare else np.empty(BLOCK, np.float32) for _ in range(count)]
    try:
        yield taken
    finally:
        _spare.extend(taken)


def blocks(size: int) -> Iterator[slice]:
    """The blocks of a vector of this many values."""
    for start in range(0, size, BLOCK):
        yield slice(start, min(start + BLOCK, size))


def add_scaled(center: Vector, vector: Vector, factor: float) -> None:
    """center += factor * vector."""
    if factor == 1.0:
        center += vector
        return
    scale = np.float32(factor)
    with scratch_blocks(1) as (scratch,):
        for block in blocks(center.size):
            part = scratch[: block.stop - block.start]
            np.multiply(vector[block], scale, out=part)
            center[block] += part


def add_mean(center: Vector, contributions: Sequence[Contribution], rate: float) -> None:
    """center += rate * sum_w (samples_w / samples) vector_w.

    The mean is computed before it is added to the center: added one by one, each vector would be rounded to the
    precision of the weights, which is a ten-thousandth of a small step. If all counts are equal, the sum is scaled: one
    pass for each vector instead of two.
    """
    factors = _factors(contributions, rate)
    with scratch_blocks(2) as (mean, scratch):
        for block in blocks(center.size):
            part = mean[: block.stop - block.start]
            _sum_into(part, block, contributions, factors, scratch)
            center[block] += part


def mean_into(out: Vector, contributions: Sequence[Contribution]) -> None:
    """out = sum_w (samples_w / samples) vector_w; `out` is none of these vectors."""
    factors = _factors(contributions, 1.0)
    with scratch_blocks(1) as (scratch,):
        for block in blocks(out.size):
            _sum_into(out[block], block, contributions, factors, scratch)


def _factors(contributions: Sequence[Contribution], rate: float) -> list[np.float32]:
    total = sum(contribution.samples for contribution in contributions)
    return [np.float32(rate * contribution.samples / total) for contribution in contributions]


def _sum_into(
    part: Vector,
    block: slice,
    contributions: Sequence[Contribution],
    factors: Sequence[np.float32],
    scratch: Vector,
) -> None:
    """part = sum_w factor_w vector_w of this block."""
    if len(contributions) > 1 and len(set(factors)) == 1:
        np.add(contributions[0].vector[block], contributions[1].vector[block], out=part)
        for contribution in contributions[2:]:
            part += contribution.vector[block]
        part *= factors[0]
        return
    np.multiply(contributions[0].vector[block], factors[0], out=part)
    for contribution, factor in zip(contributions[1:], factors[1:], strict=True):
        other = scratch[: part.size]
        np.multiply(contribution.vector[block], factor, out=other)
        part += other


def add_sums(
    center: Vector,
    places: Sequence[slice],
    before: Sequence[Vector],
    contributions: Sequence[Contribution],
    rate: float,
) -> None:
    """Merge the running sums of Caffe's BatchNorm, at these places: whatever the rule has made of them is overwritten.

    center = before + rate * sum_w (samples_w / samples) change_w. Sums and their count change by the same factor, so
    each mean stays one. A rule with a momentum, or a correction for steps of weights, would not keep them so.
    """
    total = sum(one.samples for one in contributions)
    for place, former in zip(places, before, strict=True):
        change = sum(
            one.samples / total * one.vector[place].astype(np.float64) for one in contributions
        )
        center[place] = former + rate * change


def average_into(
    center: Vector,
    places: Sequence[slice],
    before: Sequence[Vector],
    contributions: Sequence[Contribution],
) -> None:
    """Merge the moving averages, at these places, by averaging: whatever the rule has made of them is overwritten.

    center = before + share * (sum_w (samples_w / samples) value_w - before), share = 1 / (1 + merges_since), where
    merges_since is the mean over the results, weighted by samples. So results that began together weigh the same,
    whether they are merged at once, as in sync, or one after the other: the k-th of them has the share 1 / k, and the
    center is their running mean. With n equal workers in async the share is 1 / n.

    The values are sent, not their changes: n changes from the same center, all added, go n times too far, and each
    divided by n still overshoots, because the center has moved since: a variance became negative. A mean of values
    is between them. In float64, so a value that all agree on stays as it is.
    """
    total = sum(one.samples for one in contributions)
    since = sum(one.samples * max(0, one.merges_since) for one in contributions) / total
    share = 1.0 / (1.0 + since)
    for place, former in zip(places, before, strict=True):
        merged = (1.0 - share) * former.astype(np.float64)
        for one in contributions:
            merged += share * one.samples / total * one.vector[place].astype(np.float64)
        center[place] = merged
