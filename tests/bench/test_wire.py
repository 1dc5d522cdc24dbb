from __future__ import annotations

from functools import partial

import pytest

from bench.support.figures import Measured
from bench.support.link import megabits_between, sent
from bench.support.throughput import Row
from bench.wire import Traffic, codec_options, is_refused, report, wire_limit
from tests.support.network import limit, network

GIGABIT = 125e6  # bytes/s


def test_in_sync_workers_follow_one_another_on_the_masters_cable() -> None:
    # 5 ms down, 10 ms of compute, 10 ms up; the other's payload is up 10 ms later.
    limit_ = wire_limit("sync", 2, 64, 0.010, Traffic(1.25e6, 0.625e6), GIGABIT, overlap=False)
    assert limit_ == pytest.approx(2 * 64 / 0.035)


def test_without_rounds_a_worker_has_the_cable_alone_until_it_is_full() -> None:
    traffic = Traffic(1.25e6, 0.625e6)
    usual = partial(wire_limit, step_s=0.010, batch=64, traffic=traffic, bytes_per_s=GIGABIT)
    waits, overlaps = partial(usual, overlap=False), partial(usual, overlap=True)
    assert waits("async", 2) == pytest.approx(2 * 64 / 0.025)
    assert waits("easgd", 8) == pytest.approx(64 / 0.010)
    assert overlaps("async", 1) == pytest.approx(64 / 0.010)
    assert overlaps("async", 2) == pytest.approx(64 / 0.010)


def test_a_codec_names_what_workers_send_and_what_they_fetch() -> None:
    assert codec_options("none") == []
    assert codec_options("topk:0.01") == ["--compress", "topk:0.01"]
    assert codec_options("none@overlap=far") == ["--overlap", "far"]
    assert codec_options("none/bfloat16") == ["--compress", "center=bfloat16"]
    assert codec_options("int8/bfloat16") == ["--compress", "int8", "--compress", "center=bfloat16"]


def test_what_speedo_refuses_is_not_tried() -> None:
    assert is_refused("easgd", "topk:0.01")
    assert is_refused("easgd", "sparse:0.01/bfloat16")
    assert not is_refused("async", "topk:0.01")
    assert not is_refused("easgd", "int8")
    assert is_refused("sync", "none@overlap=far")
    assert not is_refused("easgd", "int8@overlap=far")


def test_each_round_is_held_against_the_limit_of_its_own_compute() -> None:
    rows = [Row("2 free-running", (64, 64)), Row("async, none", (64, 64), "async")]
    rows.append(Row("easgd, none", (64, 64), "easgd"))
    rounds = [
        {
            "2 free-running": Measured(8000.0, {"turn": 10.0}),
            "async, none": Measured(2560.0, {"turn": 50.0}),
        },
        {
            "2 free-running": Measured(4000.0, {"turn": 35.0}),
            "async, none": Measured(2304.0, {"turn": 50.0}),
        },
    ]
    traffic = {"async, none": [Traffic(1.25e6, 0.625e6)] * 2}
    lines = report(rows, rounds, traffic, GIGABIT)
    assert lines[2][1:5] == ["2,432", "1,250", "625", "50.0"]
    assert lines[2][5:] == ["3,840", "70.0%", "50.0% to 90.0%"]
    assert lines[3][:2] == ["easgd, none", "failed"]


@pytest.mark.slow
def test_a_limited_cable_carries_its_rate_at_most_and_counts_what_it_carries() -> None:
    size = 2_000_000
    with network(2) as (one, other):
        limit(one, 100)
        limit(other, 100)
        before = sent(one)
        assert 0 < megabits_between(one, other, size) < 110
        after = sent(one)
    assert size < after[0] - before[0] < 1.5 * size
    assert after[1] - before[1] < size / 2
