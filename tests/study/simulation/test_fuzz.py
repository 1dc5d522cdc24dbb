"""Random runs with faults under the eyes of an independent checker: what is promised holds in each.

A failure names its mode and seed; `python -m tests.support.schedules MODE SEED` shows that run. `SPEEDO_SIMULATIONS` is
how many of each mode, 90 by default; `make faults` runs 2,064.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.quick import tried
from tests.support.schedules import (
    MODES,
    check,
    make_schedule,
    run,
    saturated,
    short_handed,
    with_notices,
)

FIRST, SHARE = tried(60), 60  # runs of each mode: the first ones, in one test of those after them
ALL = int(os.environ.get("SPEEDO_SIMULATIONS", "90"))


def run_all(mode: str, seeds: range) -> Counter[str]:
    """What became of the results in all these runs."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts["runs"] += 1
        counts.update(check(mode, seed).counts)
    return counts


@pytest.mark.parametrize("mode", MODES)
def test_promises_hold_in_random_runs_of_each_mode(mode: str) -> None:
    counts = run_all(mode, range(FIRST))
    assert counts["runs"] == FIRST
    assert counts["merged"] > 15 * FIRST
    assert min(counts["late"], counts["refused"]) > FIRST
    assert (counts["discarded"] > 0) == (mode in ("sync", "weed-out", "hybrid"))


@pytest.mark.parametrize("mode", MODES)
def test_who_is_told_to_leave_hands_in_what_it_has(mode: str) -> None:
    """Nothing of it is lost or counted twice, and it gets no turn any more."""
    counts: Counter[str] = Counter()
    for seed in range(FIRST):
        counts.update(check(mode, seed, with_notices).counts)
    assert counts["let go"] > 0.4 * FIRST
    assert counts["merged"] > 15 * FIRST


@pytest.mark.parametrize("mode", MODES)
def test_no_version_is_made_while_fewer_than_min_workers_are_there(mode: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(FIRST // 2):
        counts.update(check(mode, seed, short_handed).counts)
    assert counts["too few"] > 0.2 * FIRST
    assert counts["merged"] > 10 * FIRST // 2


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, ALL, SHARE))
@pytest.mark.parametrize("mode", MODES)
def test_promises_hold_in_more_random_runs(mode: str, first: int) -> None:
    """Some in a test, so that several processes can share them."""
    assert run_all(mode, range(first, min(first + SHARE, ALL)))["runs"] > 0


@pytest.mark.parametrize("mode", MODES)
def test_promises_hold_where_the_master_cannot_keep_up_with_its_messages(mode: str) -> None:
    """Among them: who hangs is evicted in time, and a run without enough workers ends in time."""
    assert sum(check(mode, seed, saturated).counts["merged"] for seed in range(10)) > 50


@given(st.sampled_from(MODES), st.randoms(use_true_random=False))
def test_promises_hold_where_hypothesis_looks(mode: str, chance: random.Random) -> None:
    """The same runs, drawn by Hypothesis: what fails here is shrunk to a small schedule."""
    run(chance.choice((with_notices, lambda one: one))(make_schedule(mode, chance)))
