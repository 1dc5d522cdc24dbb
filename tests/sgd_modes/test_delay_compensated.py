"""Delay compensation against its equations: in deltas written out, and in the gradients of the paper."""

from __future__ import annotations

import math

import numpy as np
import pytest

from speedo.errors import ConfigError
from speedo.exchange.vector import Vector
from speedo.master.plan import Plan
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from speedo.sgd_modes.rules import BLOCK, AddDelta, Contribution
from speedo.sgd_modes.rules.delay_compensated import DelayCompensated
from speedo.testing import check_rule
from tests.support.simulation.simulate import simulate
from tests.support.simulation.world import World


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def test_two_merges_written_out() -> None:
    rule = DelayCompensated(compensation=2.0, mean_square=0.5)
    center, begun, state = vector(1.5, 1), vector(1, 1), rule.state_for(2)
    rule.merge(center, [Contribution(vector(2, -4), 8, begun=begun)], 0.5, 0, state)
    # The mean squares are half of (4, 16): the corrections 2 * 4 / sqrt(2) * 0.5, and 0 as nothing has moved there.
    np.testing.assert_allclose(state.vectors["mean_square"], [2, 8], rtol=1e-6)
    np.testing.assert_allclose(center, [1.5 + (2 - 4 / math.sqrt(2)) / 2, -1], rtol=1e-6)
    moved, left = float(center[0]) - 1, float(center[1]) - 1
    rule.merge(center, [Contribution(vector(1, 1), 8, begun=begun)], 0.5, 8, state)
    np.testing.assert_allclose(state.vectors["mean_square"], [1.5, 4.5], rtol=1e-6)
    first = 1 + moved + (1 - 2 * moved / math.sqrt(1.5)) / 2
    second = 1 + left + (1 - 2 * left / math.sqrt(4.5)) / 2
    np.testing.assert_allclose(center, [first, second], rtol=1e-5)


@pytest.mark.parametrize("lr", [0.5, 0.01])
def test_in_deltas_it_is_the_papers_step_whatever_the_learning_rate_is(lr: float) -> None:
    """w -= lr (g + lambda / sqrt(MeanSquare) g g (w - begun)), with MeanSquare that of gradients, in float64."""
    random, size = np.random.default_rng(3), BLOCK + 5
    rule = DelayCompensated()
    center, state = random.standard_normal(size).astype(np.float32), rule.state_for(size)
    theirs, mean = center.astype(np.float64), np.zeros(size)
    for _ in range(4):
        gradient = random.standard_normal(size)
        begun = center + 0.1 * random.standard_normal(size).astype(np.float32)
        mean = 0.95 * mean + 0.05 * gradient**2
        bent = 2.0 / np.sqrt(mean) * gradient**2 * (theirs - begun)
        theirs -= lr * (gradient + bent)
        delta = (-lr * gradient).astype(np.float32)
        rule.merge(center, [Contribution(delta, 8, begun=begun)], 1.0, 0, state)
        np.testing.assert_allclose(center, theirs, rtol=1e-3, atol=1e-3 * lr)


def test_a_result_without_delay_is_added_as_it_is() -> None:
    center, delta = vector(1, -2, 3), vector(0.5, 0, -0.25)
    plain, rule = center.copy(), DelayCompensated()
    AddDelta().merge(plain, [Contribution(delta, 8)], 0.5, 0)
    begun = center.copy()
    rule.merge(center, [Contribution(delta, 8, begun=begun)], 0.5, 0, rule.state_for(3))
    assert center.tobytes() == plain.tobytes()


def test_it_keeps_what_it_promises() -> None:
    check_rule(DelayCompensated())
    check_rule(DelayCompensated(0.5, compensation=10.0, mean_square=0.0))


def trained(servers: int = 0, lr: float = 0.05, **options: object) -> Vector:
    """The center of three workers of different speed after 60 merges, and its distance from the minimum."""
    config = make_config({"workers": 3, "mode": "async", **options})
    world = World(jitter=0.0, slowness=lambda worker: (1.0, 1.3, 1.9)[worker])
    plan = Plan(4, 60, workers=3)
    found = simulate(make_strategy(config, 4), plan, world=world, servers=servers, lr=lr)
    assert found.outcome.complete
    return found.center.vector


def test_servers_come_to_the_same_center_and_another_than_without_compensation() -> None:
    rule = {"rule": "delay-compensated"}
    alone = trained(**rule)
    np.testing.assert_array_equal(trained(servers=2, **rule), alone)
    off = trained(**rule, compensation=0)
    np.testing.assert_array_equal(off, trained())
    assert np.abs(alone - off).max() > 1e-4


def test_the_scale_of_deltas_is_as_without_it() -> None:
    config = make_config({"mode": "async", "rule": "delay-compensated", "delta_scale": 0.3})
    assert make_strategy(config, 4).rule == DelayCompensated(0.3)
    assert [DelayCompensated().rate(n) for n in (1, 2, 4)] == [1.0, 1.0, 0.5]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compensation": -1}, "compensation is -1.0: use 0, which corrects nothing, to 100"),
        ({"mean_square": 1}, "mean_square is 1.0: use 0 or more, below 1"),
        ({"mode": "sync"}, "rule delay-compensated does not go with mode sync"),
        ({"overlap": "all"}, "leave it out with rule delay-compensated"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_config({"mode": "async", "rule": "delay-compensated", **options})
