"""Curves stay short, keep their means, and send no point twice."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedo.watch.live.curves import MOST, MeanCurve, Point, RateCurve, Sent


def test_a_short_curve_is_kept_as_it_is() -> None:
    curve = MeanCurve()
    for iteration in range(1, 101):
        curve.add(iteration, iteration / 2, 1.0 / iteration)
    assert curve.points() == [(one, one / 2, 1.0 / one) for one in range(1, 101)]


def test_a_long_curve_has_means_of_equal_stretches() -> None:
    curve = MeanCurve()
    for iteration in range(100_000):
        curve.add(iteration, iteration / 10, float(iteration % 2), 1.0 + iteration % 2)
    points = curve.points()
    assert MOST / 2 <= len(points) <= MOST
    assert points[-1][:2] == (99_999, 9_999.9)
    assert {value for _, _, value in points} == {2 / 3}  # the odd ones weigh twice
    widths = {after[0] - before[0] for before, after in itertools.pairwise(points[:-1])}
    assert len(widths) == 1


def test_results_of_one_iteration_are_one_point() -> None:
    curve = MeanCurve()
    curve.add(5, 1.0, 1.0, 10)
    curve.add(5, 1.1, 2.0, 30)
    assert curve.points() == [(5, 1.1, 1.75)]


def test_what_came_after_a_checkpoint_is_taken_back() -> None:
    curve = MeanCurve()
    for iteration in range(1, 11):
        curve.add(iteration, float(iteration), 1.0)
    before = curve.generation
    curve.cut(20)
    assert curve.generation == before
    curve.cut(4)
    assert [one[0] for one in curve.points()] == [1, 2, 3, 4]
    assert curve.generation != before


def test_a_rate_counts_samples_of_each_second_and_pauses_are_zero() -> None:
    rate = RateCurve()
    for second in (0.1, 0.9, 1.5, 4.2, 5.0):
        rate.add(int(second * 10), second, 10)
    assert rate.points() == [(9, 0.5, 20), (15, 1.5, 10), (42, 2.5, 0), (42, 3.5, 0), (42, 4.5, 10)]


def test_a_rate_of_a_long_run_is_short_and_has_all_samples() -> None:
    rate = RateCurve()
    for second in range(10_001):
        rate.add(second, float(second), 7)
    points = rate.points()
    assert MOST / 2 <= len(points) <= MOST
    assert {value for _, _, value in points} == {7.0}
    rate.add(10**6, 1e12, 7)  # an edited log
    assert len(rate.points()) <= MOST


changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 200)),
        st.tuples(st.just("cut"), st.floats(0, 1)),
        st.tuples(st.just("send"), st.just(0)),
    ),
    max_size=30,
)


@given(changes)
def test_a_reader_who_is_sent_the_news_has_the_curve(steps: list[tuple[str, float]]) -> None:
    curve, rate, sent, iteration = MeanCurve(), RateCurve(), Sent(), 0
    theirs: dict[str, list[Point]] = {}
    seconds = 0.0
    for what, number in [*steps, ("send", 0)]:
        if what == "add":
            for _ in range(int(number)):
                iteration += 1
                curve.add(iteration, seconds, random.Random(iteration).random())
                rate.add(iteration, seconds, 1.0)
        elif what == "cut":
            iteration = int(iteration * number)
            curve.cut(iteration)
        else:
            for name, change in sent.news([("loss", curve), ("speed", rate)]).items():
                told = json.loads(json.dumps(change))
                own = theirs.setdefault(name, [])
                own[told["from"] :] = [(one[0], one[1], one[2]) for one in told["points"]]
    assert theirs.get("loss", []) == curve.points()
    assert theirs.get("speed", []) == rate.points()


def test_a_point_is_sent_again_only_while_it_grows() -> None:
    curve, sent = MeanCurve(), Sent()
    counts = []
    for iteration in range(1, 301):
        curve.add(iteration, 1.0, 1.0)
        (news,) = sent.news([("loss", curve)]).values()
        counts.append(len(news["points"]))  # type: ignore[arg-type]
    assert max(counts) == 2


@pytest.mark.parametrize("name", ["test/accuracy"])
def test_a_curve_that_is_gone_is_taken_back(name: str) -> None:
    curve, sent = MeanCurve(), Sent()
    curve.add(1, 1.0, 1.0)
    assert sent.news([(name, curve)])[name]["from"] == 0
    assert sent.news([]) == {name: {"from": 0, "points": []}}
