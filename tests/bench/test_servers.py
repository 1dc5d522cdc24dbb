from __future__ import annotations

from pathlib import Path

import pytest

from bench.plan import Bed, Figure
from bench.servers import Planner, byte_limit, free_rate, planned, round_s
from bench.support.throughput import Row
from tests.support.bundled_nets import Bench

MB, RATE = 1e6, 1e7  # a model takes 100 ms


# Without servers the master's cable carries four each way
@pytest.mark.parametrize(("servers", "expected"), [(0, 0.5), (1, 0.4), (2, 0.2), (4, 0.15)])
def test_a_round_lasts_until_the_last_center_is_there_and_its_result_is_sent(
    servers: int, expected: float
) -> None:
    assert round_s(MB, 4, servers, RATE) == pytest.approx(expected)


def test_without_rounds_the_fullest_cable_bounds_all() -> None:
    # A worker alone needs 10 + 200 ms; the master's cable has room for ten results a second.
    assert free_rate(MB, 4, 0, 0.010, RATE, overlap=False) == pytest.approx(10.0)
    # With 4 servers: 10 + 150 ms alone, 25 results a second; the cables carry 1.5 MB for four results: 26.7.
    assert free_rate(MB, 4, 4, 0.010, RATE, overlap=False) == pytest.approx(25.0)
    assert free_rate(MB, 4, 4, 0.010, RATE, overlap=True) == pytest.approx(26.7, rel=1e-2)
    # One server: its own worker has no way to go.
    assert free_rate(MB, 4, 1, 0.010, RATE, overlap=False) == pytest.approx(100 + 10)


def test_the_limit_counts_the_images_of_all() -> None:
    assert byte_limit("sync", MB, 4, 1, 64, 0.100, RATE) == pytest.approx(256 / 0.5)
    assert byte_limit("async", MB, 4, 4, 64, 0.010, RATE) == pytest.approx(64 * 25)


def test_a_row_is_compared_with_the_medians_of_what_was_predicted_in_its_rounds() -> None:
    rows = [Row("free", (1,)), Row("one", (1,), "sync"), Row("two", (1,), "sync")]
    figures = {
        "one": [Figure(110.0, 100.0), Figure(90.0, 100.0), Figure(105.0, 100.0)],
        "two": [Figure(60.0, 80.0)],
    }
    lines, worst = planned(rows, figures)
    assert lines[1:] == [
        ["one", "100", "105", "1.05", "0.90 to 1.10"],
        ["two", "80", "60", "0.75", "0.75 to 0.75"],
    ]
    assert worst == pytest.approx(0.25)


def test_a_prediction_is_for_the_hosts_of_the_bench(tmp_path: Path) -> None:
    bed = Bed(Bench.one_layer("product", tmp_path, 500, 1000), 8.0, 100, 3e-9)
    site = Planner(bed).site("async@overlap=far", 4)
    assert (site.link, site.servers, site.overlap, site.packet_work) == (1e8, 4, "far", 3e-9)
    assert site.servers_of(4) == (1, 2, 3, 4)
    assert Planner(bed).site("sync", 0).servers_of(4) == ()
