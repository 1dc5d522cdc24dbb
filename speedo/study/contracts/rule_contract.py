"""What every merge rule must keep to, and what it promises of itself, tried with random vectors."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from math import isfinite
from typing import Final

import numpy as np

from speedo.exchange.vector import Vector
from speedo.sgd_modes.rules import Contribution, MergeRule, State, add_mean
from speedo.sgd_modes.rules.base import title_of

SIZE: Final = 1000
MERGES: Final = 6
PARTS: Final = (slice(0, 333), slice(333, 334), slice(334, SIZE))
Merged = tuple[Vector, State]


def check_rule(rule: MergeRule) -> None:
    """Try a rule. Raises `AssertionError` with the first thing that is wrong."""
    title = f"rule {title_of(type(rule))}"
    alike = copy(rule) == rule
    assert alike, f"{title} differs from a copy of itself; make it a frozen dataclass"
    for workers in (1, 2, 7):
        assert isfinite(rule.rate(workers, 3)), f"{title} has a rate that is not finite"
    run = [_contributions(rule, number) for number in range(MERGES)]
    center, state = _merged(rule, run, title)
    assert np.isfinite(center).all(), f"{title} makes a center that is not finite"
    assert state.is_finite, f"{title} keeps a state that is not finite"
    again, _ = _merged(rule, run, title)
    assert center.tobytes() == again.tobytes(), f"{title} makes another center of the same results"
    if rule.by_ranges:
        _check_ranges(rule, run, center, state, title)
    if rule.by_mean:
        means = [[_mean(results)] for results in run]
        by_means, _ = _merged(rule, means, title)
        scale = float(np.abs(center).max())
        away = float(np.abs(by_means - center).max())
        told = f"{title} says by_mean, but merging the mean of several results is not merging them"
        assert away <= 1e-4 * scale, told
    if rule.adds_mean:
        summed = _drawn(0).copy()
        for results in run:
            add_mean(summed, results, rule.rate(3, results[0].staleness))
        told = f"{title} says adds_mean, but its merge is not the mean times its rate, added"
        assert float(np.abs(summed - center).max()) <= 1e-4 * float(np.abs(center).max()), told


def _check_ranges(
    rule: MergeRule, run: Sequence[list[Contribution]], center: Vector, state: State, title: str
) -> None:
    for part in PARTS:
        cut = [[_cut(one, part) for one in results] for results in run]
        own, kept = _merged(rule, cut, title, part)
        told = f"{title} says by_ranges, but merging the values {part.start} to {part.stop} apart is another merge"
        assert own.tobytes() == center[part].tobytes(), told
        assert kept.pack() == state.part(part).pack(), f"{told}: its state differs"


def _merged(
    rule: MergeRule, run: Sequence[list[Contribution]], title: str, part: slice = slice(0, SIZE)
) -> Merged:
    """The center after all merges of a run, and the state."""
    center = _drawn(0)[part].copy()
    state = rule.state_for(center.size)
    names = {*state.vectors}, {*state.numbers}
    for number, results in enumerate(run):
        rule.merge(center, results, rule.rate(3, results[0].staleness), 10 * number, state)
        found = {*state.vectors}, {*state.numbers}
        assert found == names, f"{title} changes the names of its state, which it declares"
        shapes = {(one.shape, one.dtype) for one in state.vectors.values()}
        usual = {((center.size,), np.dtype(np.float32))}
        assert shapes <= usual, (
            f"{title} puts other than float32 vectors of the center's size in it"
        )
    return center, state


def _contributions(rule: MergeRule, number: int) -> list[Contribution]:
    """The results of a merge; nobody may write to what they sent, which may be memory that others read."""
    return [
        Contribution(
            _drawn(10 * number + which + 1, 0.01),
            samples=8 * which + 8,
            merges_since=which,
            staleness=which + number % 3,
            version=max(0, number - which),
            begun=_drawn(1000 + number, 1.0) if rule.wants_begun else None,
            loss=2.0 / (number + which + 1),
        )
        for which in range(1 if rule.rounds is False else 3)
    ]


def _drawn(seed: int, scale: float = 1.0) -> Vector:
    drawn = np.random.default_rng(seed).standard_normal(SIZE)
    vector: Vector = (scale * drawn).astype(np.float32)
    vector.flags.writeable = False
    return vector


def _cut(one: Contribution, part: slice) -> Contribution:
    begun = None if one.begun is None else one.begun[part]
    return replace(one, vector=one.vector[part], begun=begun)


def _mean(results: Sequence[Contribution]) -> Contribution:
    samples = sum(one.samples for one in results)
    vector = sum(one.samples / samples * one.vector.astype(np.float64) for one in results)
    mean: Vector = np.asarray(vector, np.float32)
    return replace(
        results[0], vector=mean, samples=samples, staleness=max(one.staleness for one in results)
    )
