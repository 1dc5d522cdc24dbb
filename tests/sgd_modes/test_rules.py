"""The merge arithmetic, against the equations written out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedo.exchange.vector import Vector
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import uses
from speedo.sgd_modes.rules import (
    BLOCK,
    AddDelta,
    AverageDeltas,
    Contribution,
    Elastic,
    MergeRule,
    ServerGradient,
    pull_towards,
)
from speedo.study.contracts.rule_contract import check_rule

SIZES = (1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3)


def vectors(size: int, count: int) -> list[np.ndarray]:
    random = np.random.default_rng(size)
    return [random.standard_normal(size).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.3])
def test_add_delta_adds_the_scaled_delta(size: int, scale: float) -> None:
    center, delta = vectors(size, 2)
    expected = center + np.float32(scale) * delta
    AddDelta(scale).merge(center, [Contribution(delta, 5)], scale, 0)
    np.testing.assert_array_equal(center, expected)


def test_add_delta_scales_by_two_over_n_from_three_workers_on() -> None:
    assert [AddDelta().rate(n) for n in (1, 2, 4, 8)] == [1.0, 1.0, 0.5, 0.25]
    assert [AddDelta(whole=4.0).rate(n) for n in (1, 4, 8)] == [1.0, 1.0, 0.5]
    assert AddDelta(0.7).rate(8) == 0.7
    assert AddDelta(0.7).rate(8, staleness=7) == 0.7


def test_with_staleness_scaling_a_delta_is_divided_by_its_staleness_if_that_is_above_one() -> None:
    scaled = AddDelta(whole=math.inf, staleness_scaling=True)
    assert [scaled.rate(4, staleness) for staleness in (0, 1, 2, 4)] == [1.0, 1.0, 0.5, 0.25]
    assert AddDelta(0.6, staleness_scaling=True).rate(4, 3) == pytest.approx(0.2)


@pytest.mark.parametrize("size", SIZES)
def test_average_deltas_weights_by_samples(size: int) -> None:
    center, first, second, third = vectors(size, 4)
    expected = center + (22 * first + 21 * second + 21 * third) / 64
    AverageDeltas().merge(
        center, [Contribution(first, 22), Contribution(second, 21), Contribution(third, 21)], 1.0, 0
    )
    np.testing.assert_allclose(center, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("workers", "rate"), [(2, 1.0), (2, 0.3), (3, 1.0), (4, 0.5)])
def test_deltas_that_count_alike_are_added_and_their_sum_is_scaled(
    size: int, workers: int, rate: float
) -> None:
    center, *deltas = vectors(size, workers + 1)
    total = deltas[0].copy()
    for delta in deltas[1:]:
        total += delta
    expected = center + np.float32(rate / workers) * total
    AverageDeltas(rate).merge(center, [Contribution(delta, 7) for delta in deltas], rate, 0)
    np.testing.assert_array_equal(center, expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("alpha", [0.05, 0.225, 0.45, 0.9, 0.99])
def test_both_halves_of_elastic_averaging_move_by_the_same_distance(
    size: int, alpha: float
) -> None:
    center, local = vectors(size, 2)
    pull = np.float32(alpha) * (local - center)
    new_center, new_local = center + pull, local - pull
    Elastic(alpha).merge(center, [Contribution(local, 1)], alpha, 0)
    np.testing.assert_allclose(center, new_center, rtol=1e-6, atol=1e-6)
    pull_towards(local, center, alpha)
    np.testing.assert_allclose(local, new_local, rtol=1e-4, atol=1e-6 / (1 - alpha))


def test_elastic_rate_is_the_papers() -> None:
    assert Elastic().rate(3) == pytest.approx(0.3)


@given(st.floats(0.01, 0.9), st.integers(0, 2**32 - 1))
def test_elastic_averaging_keeps_the_sum_of_worker_and_center(alpha: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    center, local = (random.standard_normal(16).astype(np.float32) for _ in range(2))
    total = center + local
    Elastic(alpha).merge(center, [Contribution(local, 1)], alpha, 0)
    pull_towards(local, center, alpha)
    np.testing.assert_allclose(center + local, total, rtol=1e-4, atol=1e-4)


def test_a_server_gradient_gets_the_mean_gradient_the_center_and_the_iteration() -> None:
    seen: list[tuple[list[float], list[float], int]] = []

    def update(gradient: np.ndarray, center: np.ndarray, iteration: int) -> None:
        seen.append((gradient.tolist(), center.tolist(), iteration))
        center -= np.float32(0.5) * gradient

    center = np.array([1.0, 2.0], np.float32)
    gradients = [np.array([4.0, 0.0], np.float32), np.array([0.0, 8.0], np.float32)]
    rule = ServerGradient(update)
    assert rule.rate(4) == 1.0
    rule.merge(center, [Contribution(gradients[0], 30), Contribution(gradients[1], 10)], 0.25, 17)
    assert seen == [([3.0, 2.0], [1.0, 2.0], 17)]
    assert center.tolist() == [-0.5, 1.0]


def test_a_rule_takes_the_place_of_the_options_of_the_modes_own_rules() -> None:
    plain, ruled = (
        make_config({"mode": "sync", **more}) for more in ({}, {"rule": "outer-momentum"})
    )
    assert [uses(one, "delta_scale") for one in (plain, ruled)] == [True, False]
    assert [uses(one, "backup_workers") for one in (plain, ruled)] == [True, True]  # the schedule's


@dataclass(frozen=True)
class Half(AverageDeltas):
    """As a user may write it: the same merge at half the rate."""

    def rate(self, workers: int, staleness: int = 0) -> float:
        return 0.5


@dataclass(frozen=True)
class Otherwise(AverageDeltas):
    """The same with a merge of its own."""

    def merge(
        self, center: Vector, contributions: Any, rate: float, iteration: int, state: Any = None
    ) -> None:
        center += contributions[0].vector


def test_what_a_rule_promises_goes_with_its_merge() -> None:
    promises = ("adds_mean", "by_mean", "by_ranges", "foreseen", "keeps_finite")
    assert [getattr(Half, one) for one in promises] == [
        getattr(AverageDeltas, one) for one in promises
    ]
    assert not any(getattr(Otherwise, one) for one in promises)
    check_rule(Half())
    with pytest.raises(AssertionError, match="its merge is not the mean times its rate"):
        check_rule(replace_promise(Otherwise))


def replace_promise(rule: type[MergeRule]) -> MergeRule:
    """The rule with a promise that it does not keep."""
    return type("Liar", (rule,), {"adds_mean": True})()
