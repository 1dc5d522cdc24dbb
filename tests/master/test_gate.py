"""A vector that is finite but absurd is refused; what training does of itself is not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from speedo.master.divergence import DivergenceWatch
from speedo.messages import Kind, Refused
from speedo.sgd_modes.rules import AddDelta, Elastic, MergeRule
from tests.master.test_center import EVENT, KEY, make_center, merge, send


class Gate(DivergenceWatch):
    def check(self, kind: Kind, norm: float) -> str | None:
        return self.refusal(kind, EVENT, norm**2)


def gate_after(*norms: float) -> Gate:
    gate = Gate()
    for norm in norms:
        assert gate.check(Kind.DELTA, norm) is None
    return gate


def test_a_norm_a_thousand_times_the_median_passes_and_more_does_not() -> None:
    gate = gate_after(*[1.0, 2.0, 3.0] * 4)
    assert gate.check(Kind.DELTA, 2000.0) is None
    assert gate.check(Kind.DELTA, 2001.0) == (
        "its norm is 2e+03, more than 1,000 times the 2 that is usual here: training diverges there, or the "
        "worker computes nonsense; lower the learning rate or the momentum, or look at "
        "its node"
    )


def test_nothing_is_refused_before_ten_are_accepted() -> None:
    assert gate_after(*[1.0] * 9).check(Kind.DELTA, 1e6) is None
    assert gate_after(*[1.0] * 10).check(Kind.DELTA, 1e6) is not None


def test_what_is_refused_is_not_remembered() -> None:
    gate = gate_after(*[1.0] * 10)
    assert [gate.check(Kind.DELTA, 1e6) is None for _ in range(200)] == [False] * 200


def test_a_zero_median_refuses_nothing() -> None:
    assert gate_after(*[0.0] * 10).check(Kind.DELTA, 1e6) is None


def test_each_kind_is_judged_by_its_own() -> None:
    gate = gate_after(*[1e-3] * 10)
    assert gate.check(Kind.WEIGHTS, 100.0) is None
    assert gate.check(Kind.DELTA, 100.0) is not None


def test_the_last_hundred_say_what_is_usual() -> None:
    gate = gate_after(*[1.0] * 100, *[500.0] * 60)
    assert gate.check(Kind.DELTA, 1e5) is None


def test_steps_of_the_rate_and_growing_momentum_pass() -> None:
    """Momentum 0.9 makes deltas ten times as long within some 40 steps; a `multistep` policy divides by 10."""
    growth = [1.0 - 0.9**step for step in range(1, 60)]
    fallen = [0.1**drop for drop in range(1, 4) for _ in range(80)]
    cosine_restart = [0.5 * (1 + math.cos(math.pi * step / 100)) + 0.01 for step in range(100)]
    gate_after(*growth, *cosine_restart, *cosine_restart, *fallen)


@pytest.mark.parametrize("rule", [AddDelta(1.0), Elastic(0.5)])
def test_an_absurd_payload_leaves_the_center_as_it_was(rule: MergeRule) -> None:
    center = make_center()
    for version in range(1, 13):
        send(center, np.full(4, version, np.float32), kind=rule.payload)
        assert center.receive(EVENT, rule) is None
        center.merge(merge(version), 0)
    before, version = center.vector.copy(), center.version
    send(center, np.full(4, 1e7, np.float32), kind=rule.payload)
    refused = center.receive(EVENT, rule)
    assert isinstance(refused, Refused)
    assert "its norm is 2e+07, more than 1,000 times the 13" in refused.reason
    np.testing.assert_array_equal(center.vector, before)
    assert center.version == version
    center.tidy()
    assert KEY not in center.store.keys("speedo:run:")
