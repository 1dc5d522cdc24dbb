"""The table of the rules bench, and that its cluster trains a real net."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan

import pytest

from bench.rules import WAYS, Found, table_of, train


def test_seeds_are_averaged_and_a_way_that_diverges_has_no_figure() -> None:
    found = {
        "good": [Found(0.8, 0.5, 1.25), Found(0.9, 0.4, 1.25)],
        "bad": [Found(0.8, 0.5, 1.25), Found(None, nan, 0.0)],
    }
    _, good, bad = table_of(found, {"good": "better than bad", "bad": ""})
    assert good == ["good", "0.8500", "0.8000 to 0.9000", "0.4500", "1.2", "better than bad"]
    assert bad == ["bad", "1 of 2 diverge", "", "", "", ""]


@pytest.mark.torch
def test_a_run_trains_counts_its_bytes_and_ends_where_it_diverges() -> None:
    ways = {way.name: way for way in WAYS}
    way = ways["50 steps, averaged, sparse:0.01"]
    found = train(way, 1, 3200)
    assert found.accuracy is not None
    assert found.accuracy > 0.4
    assert found.megabytes == pytest.approx(2 * 4 * 5_829e-6)
    assert train(way, 1, 3200) == found
    lost = train(replace(ways["delay-compensated"], lr=50.0), 1, 800)
    assert lost.accuracy is None
    assert isnan(lost.loss)
