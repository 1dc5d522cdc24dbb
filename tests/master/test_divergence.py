"""The watch stops runs that have diverged and no others."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedo.master.divergence import DivergenceWatch
from speedo.messages import Kind

CLAMP = 87.3365  # Caffe: softmax_loss_layer.cpp takes the logarithm of at least FLT_MIN


def stopped_after(losses: Iterable[float], mode: str = "async", workers: int = 2) -> int | None:
    """The number of results until the watch speaks."""
    watch = DivergenceWatch(mode, workers)
    for number, loss in enumerate(losses, 1):
        if watch.saw(loss, 64) is not None:
            return number
    return None


def noisy(
    curve: Callable[[int], float], sigma: float, chance: random.Random, n: int = 1500
) -> list[float]:
    """A curve with lognormal noise of mean 1."""
    return [curve(i) * math.exp(chance.gauss(0, sigma) - sigma**2 / 2) for i in range(n)]


def falling(start: float, end: float, pace: float) -> Callable[[int], float]:
    return lambda i: end + (start - end) * math.exp(-i / pace)


def bump(i: int) -> float:
    """A rate that warms up: the loss is six times as high for 80 results."""
    return falling(2.3, 0.5, 300)(i) * (6.0 if 100 <= i < 180 else 1.0)


def phases(i: int) -> float:
    """A hybrid run whose phases differ by a factor of two."""
    return falling(2.3, 0.2, 200)(i) * (2.0 if i // 100 % 2 else 1.0)


def sorted_classes(i: int) -> float:
    """Records sorted by class: each new class comes as a shock, and is learnt."""
    return 0.01 + 9.0 * math.exp(-(i % 200) / 15)


def single_squares(chance: random.Random) -> list[float]:
    """Regression with one sample a batch: squares of normal errors, whose low tail is heavy."""
    return [falling(50, 1, 200)(i) * chance.gauss(0, 1) ** 2 for i in range(1500)]


@given(
    seed=st.integers(0, 10**6),
    sigma=st.floats(0.0, 1.0),
    start=st.sampled_from([1e-3, 0.7, 2.3, 1e6]),
    share=st.floats(1e-6, 1.0),
    pace=st.floats(20, 1000),
    step=st.floats(0.0, 0.02),
)
def test_it_is_silent_on_what_falls_however_noisy(
    seed: int, sigma: float, start: float, share: float, pace: float, step: float
) -> None:
    """With a random walk, held within 30 %, on top of the noise."""
    walk, losses, chance = 0.0, [], random.Random(seed)
    for value in noisy(falling(start, start * share, pace), sigma, chance):
        walk = max(-0.3, min(0.3, walk + chance.gauss(0, step)))
        losses.append(value * math.exp(walk))
    assert stopped_after(losses) is None


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize(
    "curve",
    [bump, phases, sorted_classes, falling(1e8, 1.0, 5), falling(2.3, 1e-7, 100), lambda i: 2.3, lambda i: 0.0],
)  # fmt: skip
def test_it_is_silent_on_what_training_does(curve: Callable[[int], float], seed: int) -> None:
    assert stopped_after(noisy(curve, 0.5, random.Random(seed))) is None


@pytest.mark.parametrize("seed", range(30))
def test_it_is_silent_on_single_samples_of_a_regression(seed: int) -> None:
    assert stopped_after(single_squares(random.Random(seed))) is None


def test_it_is_silent_where_losses_are_negative() -> None:
    assert stopped_after([2.0, -1.0, 1.0] + [1e6] * 1000) is None


def test_many_results_of_one_bad_round_are_not_many_rounds() -> None:
    """256 workers, sync: two rounds of a high loss are 512 results."""
    assert stopped_after([2.3] * 2560 + [90.0] * 512 + [2.3] * 2560, "sync", 256) is None
    assert stopped_after([2.3] * 2560 + [90.0] * 256 * 60, "sync", 256) is not None


@given(
    seed=st.integers(0, 10**6),
    sigma=st.floats(0.0, 0.7),
    healthy=st.integers(20, 600),
    times=st.floats(10.0, 1000.0),
    climb=st.integers(1, 30),
)
def test_it_speaks_within_200_results_of_a_tenfold_rise(
    seed: int, sigma: float, healthy: int, times: float, climb: int
) -> None:
    def curve(i: int) -> float:
        before = falling(2.3, 1.0, 300)
        return before(i) if i < healthy else 2.3 * times ** min(1.0, (i - healthy + 1) / climb)

    after = stopped_after(noisy(curve, sigma, random.Random(seed), healthy + 300))
    assert after is not None
    assert healthy < after <= healthy + 200


@pytest.mark.parametrize("at", [2, 3, 5, 8, 12, 19, 25, 40])
def test_it_speaks_however_early_the_loss_jumps_to_caffes_clamp(at: int) -> None:
    chance = random.Random(at)
    stuck = [0.9 * CLAMP + chance.uniform(-8, 8) for _ in range(400)]
    after = stopped_after([2.3] * at + stuck)
    assert after is not None
    assert after <= at + 200


def test_it_speaks_when_all_that_was_learnt_is_forgotten() -> None:
    """Dead units: the loss is that of guessing again, where it began."""
    after = stopped_after(
        noisy(lambda i: 2.3 * math.exp(-i / 60) if i < 250 else 2.303, 0.1, random.Random(1))
    )
    assert after is not None
    assert 250 < after <= 450


# ---------------------------------------------------------------- the numbers, to the boundary


def spoken_after(losses: Iterable[float], workers: int = 1) -> int | None:
    """As `stopped_after`, with results of one sample."""
    watch = DivergenceWatch("async", workers)
    said = (number for number, loss in enumerate(losses, 1) if watch.saw(loss, 1) is not None)
    return next(said, None)


@pytest.mark.parametrize(
    ("before", "high", "higher"),
    [
        # Three times the best.
        ([1.0] * 60, 3.0, 3.01),
        # Twice the start, where that is more: the best is 1.
        ([2.0] * 20 + [1.0] * 60, 4.0, 4.01),
        # Nine tenths of the start, where it was a tenth of this at best.
        ([2.0] * 20 + [0.125] * 60, 1.8, 1.81),
        # Ten times the best, where that is more than nine tenths of the start.
        ([2.0] * 20 + [0.1875] * 60, 1.875, 1.876),
        # Ten times the very first: the mean of the beginning is that of an explosion.
        ([1.0] * 3 + [1000.0] * 17, 10.0, 10.01),
    ],
)
def test_a_loss_is_high_above_its_bound_and_not_at_it(
    before: list[float], high: float, higher: float
) -> None:
    assert spoken_after(before + [high] * 400) is None
    assert spoken_after(before + [higher] * 400) is not None


def test_it_speaks_at_the_hundredth_point_whose_median_is_high() -> None:
    """The median of 50 points is high with the 26th of them: that is point 86."""
    assert spoken_after([1.0] * 60 + [5.0] * 124) is None
    assert spoken_after([1.0] * 60 + [5.0] * 400) == 185
    interrupted = ([1.0] * 60 + [5.0] * 99) * 2
    assert spoken_after(interrupted) is None


@pytest.mark.parametrize(("lowest", "after"), [(3.0, None), (3.01, 151)])
def test_after_an_explosion_no_point_of_fifty_came_near_the_very_first(
    lowest: float, after: int | None
) -> None:
    """One in 40 is low; the others are ten times the median of the first three and more."""
    stuck = [lowest if number % 40 == 0 else 11.0 for number in range(400)]
    assert spoken_after([1.0, 1.0, 9.0] + [1000.0] * 17 + stuck) == after


def test_from_a_loss_of_nothing_there_is_no_scale() -> None:
    assert spoken_after([0.0] * 3 + [5.0] * 400) is None
    assert spoken_after([2.0] * 60 + [0.0] + [90.0] * 400) is not None


def test_the_beginning_is_the_mean_of_twenty_points() -> None:
    """And the very first are three: their median does not see the one that is 9."""
    watch = DivergenceWatch("sync")
    said = [watch.saw(loss, 1) for loss in [4.0, 4.0, 9.0] + [1.0] * 17 + [2.0] * 60 + [50.0] * 200]
    words = next(text for text in said if text)
    assert "it is 50, was 1.7 at best and began at 1.7;" in words
    watch = DivergenceWatch("sync")
    said = [watch.saw(loss, 1) for loss in [0.5, 0.5, 9.0] + [1.0] * 17 + [2.0] * 60 + [50.0] * 200]
    assert "was 0.5 at best and began at 0.5;" in next(text for text in said if text)


def test_with_many_workers_a_point_is_the_mean_over_the_samples_of_a_quarter_of_them() -> None:
    """Of 8 workers two results make a point: with 3 samples of 1 and 1 of 5 it is 2."""

    def spoken(high: list[tuple[float, int]]) -> int | None:
        watch = DivergenceWatch("async", 8)
        results = [(0.5, 1)] * 120 + high * 200
        said = (number for number, one in enumerate(results, 1) if watch.saw(*one) is not None)
        return next(said, None)

    assert spoken([(1.0, 3), (3.0, 1)]) is None
    assert spoken([(1.0, 3), (5.0, 1)]) == 2 * 185


@pytest.mark.parametrize(
    ("mode", "workers", "payload", "remedy"),
    [
        ("async", 4, Kind.DELTA, "lower --delta-scale, --lr or --momentum, or use --mode sync"),
        ("partial", 2, Kind.DELTA, "lower --delta-scale, --lr or --momentum, or use --mode sync"),
        ("weed-out", 2, Kind.DELTA, "lower --delta-scale, --lr or --momentum, or use --mode sync"),
        ("weed-out", 2, Kind.WEIGHTS, "lower --lr, its scale or --moving-rate"),
        ("async", 2, Kind.GRADIENT, "lower --lr"),
        ("async", 1, Kind.DELTA, "lower --lr"),
        ("easgd", 4, Kind.WEIGHTS, "lower --lr, its scale or --moving-rate"),
        ("sync", 4, Kind.DELTA, "lower --lr"),
        ("hybrid", 4, Kind.DELTA, "lower --lr, or delta_scale or moving_rate of its phases"),
    ],
)
def test_the_advice_is_that_of_the_mode(
    mode: str, workers: int, payload: Kind, remedy: str
) -> None:
    watch = DivergenceWatch(mode, workers, payload)
    said = [watch.saw(loss, 64) for loss in [2.0] * 30 + [CLAMP] * 300]
    first = next(text for text in said if text)
    assert first == (f"the loss has diverged: it is 87.3, was 2 at best and began at 2; {remedy}")


@pytest.mark.parametrize(
    ("mode", "payload", "remedy"),
    [
        ("async", Kind.DELTA, "--delta-scale, the learning rate in the script, or use --mode sync"),
        ("easgd", Kind.WEIGHTS, "the learning rate in the script or --moving-rate"),
        ("sync", Kind.DELTA, "the learning rate in the script"),
        (
            "hybrid",
            Kind.DELTA,
            "the learning rate in the script, or delta_scale or moving_rate of its phases",
        ),
    ],
)
def test_the_advice_for_a_script_names_no_option_that_it_has_not(
    mode: str, payload: Kind, remedy: str
) -> None:
    watch = DivergenceWatch(mode, 4, payload, script=True)
    said = [watch.saw(loss, 64) for loss in [2.0] * 30 + [CLAMP] * 300]
    first = next(text for text in said if text)
    assert first.endswith(f"began at 2; lower {remedy}")
