"""Test outputs of many values take little room in a line."""

from __future__ import annotations

import pytest

from speedo.watch.scores import short_scores


def test_outputs_of_many_values_are_shown_by_their_mean() -> None:
    scores = {f"score/{place}": float(place) for place in range(11)}
    metrics = {"accuracy": 0.5, **scores, "test1/loss": 2.0, "by_class/0": 0.1, "by_class/1": 0.9}
    assert short_scores(metrics) == {
        "accuracy": 0.5,
        "score (mean of 11)": pytest.approx(5.0),
        "test1/loss": 2.0,
        "by_class/0": 0.1,
        "by_class/1": 0.9,
    }


def test_each_test_nets_outputs_are_apart() -> None:
    metrics = {f"{net}top/{place}": 1.0 for net in ("", "test1/") for place in range(2000)}
    assert list(short_scores(metrics)) == ["top (mean of 2,000)", "test1/top (mean of 2,000)"]


def test_a_test_net_of_many_single_values_is_shown_whole() -> None:
    metrics = {f"loss{place}": 1.0 for place in range(30)}
    assert short_scores(metrics) == metrics
