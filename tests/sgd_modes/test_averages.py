"""Moving averages are averaged in every mode: no number of workers and no delay carries them beyond the values sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from speedo.exchange.vector import Blob, Layout, Vector, as_bytes, header_for
from speedo.master.center import Center
from speedo.messages import Merge, Part, Trained
from speedo.sgd_modes.rules import (
    AddDelta,
    AverageDeltas,
    Contribution,
    Elastic,
    MergeRule,
    TakeCenter,
    add_sums,
    average_into,
)
from speedo.storage import keys
from speedo.storage.memory_store import MemoryStore

LAYOUT = Layout((Blob("w", (2,)), Blob("bn/var", (3,), True, True), Blob("v", (1,))))
PLACE = LAYOUT.averages[0]
RULES = [AddDelta(1.0), AverageDeltas(), Elastic(0.3)]
START = np.array([1, 2, 1, 0.1, 100, 3], np.float32)


def center_at(start: Vector) -> Center:
    center = Center("run", start.copy(), LAYOUT, MemoryStore())
    center.publish()
    return center


def merge(
    center: Center, rule: MergeRule, values: Sequence[Vector], samples: Sequence[int], base: int
) -> None:
    """These payloads in one merge, of workers that began with version `base`."""
    parts = []
    for worker, (vector, count) in enumerate(zip(values, samples, strict=True)):
        ticket = 100 * center.version + worker
        body = as_bytes(vector)
        header = header_for(body, LAYOUT, rule.payload, version=base, worker=worker, ticket=ticket)
        center.store.write(keys.payload("run", worker, ticket), header.pack(), body)
        assert center.receive(Trained(worker, 0, ticket, 0.5, count), rule) is None
        parts.append(Part(worker, 0, ticket, count, 0, 0.5))
    version = center.version + 1
    center.merge(Merge(version, version, sum(samples), rule.rate(4), tuple(parts)), 0)


def payloads(count: int) -> list[Vector]:
    return [np.random.default_rng(n).uniform(0, 2, 6).astype(np.float32) for n in range(count)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_one_merge_takes_the_mean_by_samples_and_leaves_the_rest_to_the_rule(
    rule: MergeRule,
) -> None:
    center, sent, samples = center_at(START), payloads(3), [10, 20, 50]
    merge(center, rule, sent, samples, 0)
    by_rule = START.copy()
    contributions = [Contribution(one, n) for one, n in zip(sent, samples, strict=True)]
    rule.merge(by_rule, contributions, rule.rate(4), 0)
    by_rule[PLACE] = np.average([one[PLACE] for one in sent], axis=0, weights=samples)
    np.testing.assert_allclose(center.vector, by_rule, rtol=1e-6)
    np.testing.assert_array_equal(center.vector[:2], by_rule[:2])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_results_that_began_together_count_alike_in_one_merge_and_in_several(
    rule: MergeRule,
) -> None:
    together, apart, sent = center_at(START), center_at(START), payloads(4)
    merge(together, rule, sent, [5] * 4, 0)
    for one in sent:
        merge(apart, rule, [one], [5], 0)
    np.testing.assert_allclose(apart.vector[PLACE], together.vector[PLACE], rtol=1e-6)


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("kept", [0.0, 0.9])
def test_in_async_a_variance_comes_down_to_the_true_one_and_never_below(
    workers: int, kept: float
) -> None:
    """Each worker keeps `kept` of its center's value in a turn, and the data have the variance 0.01."""
    center, true = center_at(START), np.float32(0.01)
    seen = [(0, START.copy())] * workers
    for turn in range(500 * workers):
        base, began = seen[turn % workers]
        value = began.copy()
        value[PLACE] = np.float32(kept) * began[PLACE] + np.float32(1 - kept) * true
        value[:2] = value[5:] = 0
        merge(center, AddDelta(1.0), [value], [5], base)
        assert (center.vector[PLACE] >= 0.99 * true).all()
        seen[turn % workers] = (center.version, center.vector.copy())
    np.testing.assert_allclose(center.vector[PLACE], true, rtol=1e-3)


def test_a_value_that_all_agree_on_stays_to_the_bit() -> None:
    value = np.full(3, 0.1, np.float32)
    center, places = value.copy(), (slice(0, 3),)
    for since in range(30):
        one = Contribution(value, 7, since)
        average_into(center, places, [center.copy()], [one, Contribution(value, 11, 2)])
        assert center.tobytes() == value.tobytes()


def test_what_a_team_made_is_taken_whole() -> None:
    center, (sent,) = center_at(START), payloads(1)
    merge(center, TakeCenter(AverageDeltas()), [sent], [5], 0)
    assert center.vector.tobytes() == sent.tobytes()


def test_running_sums_change_by_the_mean_whatever_a_rule_with_momentum_makes_of_them() -> None:
    layout = Layout((Blob("w", (1,)), Blob("bn/sum", (2,), statistic=True)))
    center = np.array([1, 100, 50], np.float32)
    parts = [
        Contribution(np.array(change, np.float32), n)
        for change, n in (([9, 8, 4], 1), ([9, 4, 2], 3))
    ]
    (place,) = layout.sums
    before = [center[place].copy()]
    center[place] = -7.0
    add_sums(center, layout.sums, before, parts, 0.5)
    assert center.tolist() == [1, 102.5, 51.25]
    assert Layout((Blob("bn/mean", (2,), True, True),)).sums == ()
