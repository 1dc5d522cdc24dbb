"""Epochs to a loss, by series whose answers are worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from speedo.watch.report.equal_loss import (
    LossCurve,
    SeedRange,
    interval_of,
    product,
    ratios,
    seconds_at,
    smoothed,
    window_of,
)
from speedo.watch.report.figures import SEQUENTIAL, Figures, Forecast, Series, figures_of
from speedo.watch.report.run_history import RunHistory, TestPoint
from speedo.watch.report.tables import as_text
from speedo.watch.report.words import facts, warnings


def run(
    mode: str, seed: int, losses: list[float], *, workers: int = 1, rate: float = 10.0
) -> RunHistory:
    """A run with a piece of ten images for each loss, at `rate` images/s."""
    ends = [10.0 * (place + 1) for place in range(len(losses))]
    return RunHistory(
        f"{mode}{seed}", Path(mode), mode, workers, seed, {"mode": mode},
        ends=ends, seconds=[end / rate for end in ends], losses=losses, merged=len(losses), complete=True,
    )  # fmt: skip


def series_of(figures: Figures, mode: str, workers: int) -> Series:
    (found,) = [one for one in figures.series if (one.mode, one.workers) == (mode, workers)]
    return found


def mean(interval: SeedRange | None) -> float:
    assert interval is not None
    return interval.mean


def test_the_loss_is_the_mean_over_the_last_window_of_images() -> None:
    # Pieces of 10, 10 and 20 images; the window of 20 holds one piece and a half at the third end.
    curve = smoothed([10, 20, 40], [4.0, 2.0, 1.0], 20)
    assert curve.loss.tolist() == [4.0, 3.0, 1.0]
    curve = smoothed([10, 20, 40], [4.0, 2.0, 1.0], 30)
    assert curve.loss.tolist() == pytest.approx([4.0, 3.0, (10 * 2.0 + 20 * 1.0) / 30])


def test_pieces_of_other_sizes_have_the_same_mean() -> None:
    fine = smoothed([5, 10, 15, 20, 25, 30], [3, 1, 2, 2, 0, 1], 10)
    coarse = smoothed([10, 20, 30], [2, 2, 0.5], 10)
    assert fine.loss[1::2].tolist() == pytest.approx(coarse.loss.tolist())


def test_a_loss_is_reached_between_two_points() -> None:
    curve = LossCurve(np.array([10.0, 20.0, 30.0]), np.array([4.0, 2.0, 1.0]))
    assert curve.reaches(3.0) == 15.0
    assert curve.reaches(1.25) == 27.5
    assert curve.reaches(5.0) == 10.0
    assert curve.reaches(0.5) is None


def test_the_first_time_counts_though_the_loss_rises_again() -> None:
    curve = LossCurve(np.array([1.0, 2.0, 3.0, 4.0]), np.array([3.0, 1.0, 3.0, 1.0]))
    assert curve.reaches(2.0) == 1.5


def test_a_run_that_diverged_reaches_nothing() -> None:
    curve = smoothed([10, 20, 30], [2.0, math.nan, 0.1], 10)
    assert curve.reaches(1.0) is None


def test_the_window_is_an_epoch_or_a_quarter_of_a_short_run() -> None:
    assert window_of(1000, 100) == 100
    assert window_of(200, 100) == 50
    assert window_of(200, None) == 50


def test_runs_of_scripts_count_samples() -> None:
    one = run("sync", 1, [2.0, 1.0])
    assert (
        figures_of([one], records=None).unit,
        as_text(figures_of([one], records=None)).count("images/s"),
    ) == (
        "thousand images",
        1,
    )
    one.options = {"own": True}
    figures = figures_of([one], records=None)
    assert figures.unit == "thousand samples"
    assert "images" not in as_text(figures) + repr(facts(figures) + warnings(figures))


def test_seconds_begin_when_training_does() -> None:
    one = run("sync", 1, [2.0, 1.0])
    one.began, one.seconds = 5.0, [6.0, 8.0]
    assert seconds_at(one, 5.0) == 0.5
    assert seconds_at(one, 15.0) == 2.0


def test_factors_are_taken_seed_by_seed() -> None:
    assert ratios({1: 4.0, 2: 6.0}, {1: 2.0, 2: 6.0}) == SeedRange(1.5, 1.0, 2.0, 2)
    # Of other seeds: over the mean of the reference.
    assert ratios({1: 4.0, 2: 6.0}, {7: 2.5}) == SeedRange(2.0, 2.0, 2.0, 1)
    assert ratios({}, {1: 1.0}) is None
    assert interval_of([]) is None


def test_a_product_spans_what_its_factors_allow() -> None:
    both = product(SeedRange(2.0, 1.5, 2.5, 3), SeedRange(3.0, 2.0, 4.0, 3))
    assert both == SeedRange(6.0, 3.0, 10.0, 3)
    assert product(None, SeedRange(1, 1, 1, 1)) is None


def test_speed_up_is_epochs_times_throughput() -> None:
    # The window is a quarter of the reference, 10 images: each piece by itself. Sequential Caffe ends at 1.0 after 40
    # images; the mode is at 1.0 after 20, and three times as fast.
    alone = run(SEQUENTIAL, 1, [4.0, 3.0, 2.0, 1.0])
    mode = run("easgd", 1, [2.0, 1.0, 0.5, 0.5, 0.5], workers=2, rate=30.0)
    figures = figures_of([alone, mode], records=10)
    easgd = series_of(figures, "easgd", 2)
    assert figures.targets[1] == pytest.approx(1.001)
    # Within a thousandth of the loss: 4 epochs less 0.001, over 2 less 0.001.
    assert mean(easgd.epoch_factor) == pytest.approx((4 - 0.001) / (2 - 0.001))
    assert mean(easgd.throughput_factor) == pytest.approx(3.0)
    assert mean(easgd.speedup) == pytest.approx(3.0 * (4 - 0.001) / (2 - 0.001))
    assert easgd.published == "2.02"


def test_a_mode_that_never_gets_there_has_a_bound_and_no_speed_up() -> None:
    alone = run(SEQUENTIAL, 1, [4.0, 3.0, 2.0, 1.0])
    mode = run("async", 1, [4.0, 4.0, 3.0, 3.0, 2.0], workers=2)
    one = series_of(figures_of([alone, mode], records=10), "async", 2)
    assert (one.not_reached, one.speedup, one.epoch_factor) == (1, None, None)
    assert one.at_most == pytest.approx(39.99 / 50)


def test_predicted_throughput_takes_the_place_of_measured() -> None:
    alone = run(SEQUENTIAL, 1, [4.0, 3.0, 2.0, 1.0])
    mode = run("sync", 1, [4.0, 3.0, 2.0, 1.0], workers=4, rate=15.0)
    figures = figures_of(
        [alone, mode],
        records=10,
        forecasts=lambda r: Forecast(38.0, 3.8) if r.wanted == 4 else None,
    )
    sync = series_of(figures, "sync", 4)
    assert sync.predicted
    assert mean(sync.epoch_factor) == 1.0
    assert mean(sync.speedup) == pytest.approx(3.8)
    assert mean(sync.images_per_s) == pytest.approx(15.0)
    assert not figures.reference.predicted


def test_the_test_loss_is_followed_from_test_to_test() -> None:
    alone = run(SEQUENTIAL, 1, [4.0, 1.0])
    alone.tests = [TestPoint(0, 0, {"loss": 3.0}), TestPoint(20, 2, {"loss": 1.0})]
    mode = run("sync", 1, [4.0, 1.0], workers=2)
    mode.tests = [TestPoint(0, 0, {"loss": 3.0}), TestPoint(10, 1, {"loss": 0.5})]
    sync = series_of(figures_of([alone, mode], records=10, measure="test", target=1.5), "sync", 2)
    assert mean(sync.epochs) == pytest.approx(0.6)
    assert mean(sync.epoch_factor) == pytest.approx(1.5 / 0.6)


def test_runs_that_differ_by_their_seed_are_one_series_and_options_make_others() -> None:
    alone = [run(SEQUENTIAL, seed, [2.0, 1.0]) for seed in (1, 2)]
    swept = []
    for seed in (1, 2):
        for steps in (1, 5):
            one = run("easgd", seed, [2.0, 1.0], workers=2)
            one.options = {
                "mode": "easgd",
                "local_steps": steps,
                "seed": seed,
                "run_dir": f"{seed}{steps}",
            }
            swept.append(one)
    figures = figures_of([*alone, *swept], records=10)
    assert [(one.label, len(one.runs)) for one in figures.series] == [
        ("sequential Caffe", 2),
        ("easgd, 2 workers, local_steps 1", 2),
        ("easgd, 2 workers, local_steps 5", 2),
    ]
