from __future__ import annotations

from pathlib import Path

import pytest

from bench import growth
from bench.growth import Line, draw
from bench.support.figures import Measured


def turn(milliseconds: float, rate: float = 1.0) -> Measured:
    return Measured(rate, {"turn": milliseconds})


def test_a_line_in_bytes_is_found_and_leaves_nothing_over() -> None:
    line = growth.fit_line([0.4, 1.7, 244.0], [2.4, 3.7, 246.0])
    assert (line.constant, line.per_mb) == pytest.approx((2.0, 1.0))
    assert line.residuals == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)


def test_what_is_no_line_shows_in_residuals_relative_to_each_size() -> None:
    """Least squares of the milliseconds themselves would miss the small model by more than its whole time."""
    line = growth.fit_line([1.0, 10.0, 100.0], [1.0, 10.0, 150.0])
    assert max(map(abs, line.residuals)) < 0.25
    assert max(map(abs, line.residuals)) > 0.1


@pytest.mark.parametrize("megabytes", growth.SIZES)
def test_a_layer_has_the_bytes_that_were_asked_for(megabytes: float) -> None:
    inputs, outputs = growth.shape_of(megabytes)
    assert 4e-6 * inputs * outputs == pytest.approx(megabytes, rel=0.01)
    assert outputs >= 10  # the labels


def test_an_exchange_is_what_a_turn_takes_beyond_plain_caffe_in_the_same_round() -> None:
    rounds = [
        {"1.7 MB, plain Caffe": turn(1.0), "1.7 MB, 1 worker": turn(4.0)},
        {"1.7 MB, plain Caffe": turn(2.0), "1.7 MB, 1 worker": turn(4.0)},
        {"1.7 MB, plain Caffe": turn(9.0)},
    ]
    assert growth.exchange_times([0.4, 1.7], rounds) == {1.7: [3.0, 2.0]}
    cells = growth.size_table({1.7: [3.0, 2.0]}, rounds, Line(0.0, 1.0, (0.05,)))[1]
    assert cells == ["1.7", "2.00", "4.00", "2.50", "2.00 to 3.00", "", "", "", "1.36", "+5.0%"]


def test_the_master_is_told_by_its_share_of_a_core_and_by_its_work_for_a_result() -> None:
    rounds = [{"sync, 16": turn(40.0, rate=200.0)}]
    shares = {"sync, 16": [{"master": 0.5, "redis": 0.25}]}
    rows = growth.workers_table(["sync"], [8, 16], rounds, shares)
    assert rows[1] == ["sync, 8", "failed", "", "", "", "", ""]
    assert rows[2] == ["sync, 16", "200", "5.00", "40.00", "50%", "2.50", "25%"]
    assert growth.points_of(["sync"], [8, 16], rounds, shares) == {"sync": [(16, 5.0, 0.5)]}


@pytest.mark.slow
def test_the_figures_are_drawn(tmp_path: Path) -> None:
    times = {0.4: [1.0, 2.0], 13.0: [9.0, 11.0]}
    draw(tmp_path / "g.png", times, Line(1.0, 0.7, (0.0, 0.0)), {"sync": [(1, 2.0, 0.3)]})
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
