"""The figures of `bench.floor`: ratios within a round, whatever the machine's speed in it."""

from __future__ import annotations

from bench.floor import FREE, Window, figures


def test_a_ratio_is_that_of_windows_of_the_same_round() -> None:
    windows = {
        FREE: [Window(100.0, 20.0, 20.0, 0.0), Window(50.0, 40.0, 40.0, 0.0)],
        "barrier": [Window(90.0, 22.0, 21.0, 0.1), Window(45.0, 44.0, 42.0, 0.3)],
    }
    _, free, barrier = figures(windows)
    assert free == [FREE, "", "", "30.00", "30.00", "0.00"]
    assert barrier == ["barrier", "90.0%", "90.0% to 90.0%", "33.00", "31.50", "0.20"]


def test_the_middle_half_leaves_the_outer_rounds_out() -> None:
    free = [Window(100.0, 20.0, 20.0, 0.0)] * 5
    other = [Window(rate, 20.0, 20.0, 0.0) for rate in (10.0, 80.0, 90.0, 95.0, 300.0)]
    assert figures({FREE: free, "other": other})[2][1:3] == ["90.0%", "80.0% to 95.0%"]
