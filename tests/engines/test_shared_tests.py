"""Shares of a test, put together, are the test of one process, however the batches divide."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from speedo.engines.evaluation import PartOfTest, combined
from speedo.engines.solver import read_solver
from speedo.errors import EngineError
from tests.support.nets import net_text, write_data, write_solver
from tests.support.solvers import scorer, weights

BATCHES = 7


@pytest.mark.parametrize("batches", [0, 1, 5, 6, 100])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_batch_has_one_share_and_shares_are_of_equal_size(batches: int, count: int) -> None:
    shares = [PartOfTest(index, count).of(batches) for index in range(count)]
    assert [batch for share in shares for batch in share] == list(range(batches))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_the_mean_is_over_batches() -> None:
    """1 + 2 + 6 over three batches, and of the second net 8 over one that only one share has."""
    first = [({"loss": 3.0}, 2), ({}, 0)]
    second = [({"loss": 6.0}, 1), ({"loss": 8.0, "top/1": 1.0}, 1)]
    assert combined([first, second]) == {"loss": 3.0, "test1/loss": 8.0, "test1/top/1": 1.0}


def test_a_mean_that_is_not_finite_is_refused() -> None:
    with pytest.raises(EngineError, match="the test output test1/loss is inf"):
        combined([[({"loss": 3.0}, 2), ({"loss": float("inf")}, 1)]])


@pytest.mark.caffe
@pytest.mark.parametrize("records", [35, 40], ids=["ends with the data", "does not"])
def test_shares_of_real_nets_are_the_test_of_one_process(tmp_path: Path, records: int) -> None:
    """Twice over, for nets are kept from one test to the next, and read on where they stopped."""
    write_data(tmp_path, test=records)
    text = net_text(train=f"{tmp_path}/train", test=f"{tmp_path}/test", test_batch=5)
    spec = read_solver(
        write_solver(tmp_path, text, test_iter=[BATCHES, 2], test_state=["{}", "{ level: 1 }"])
    )
    whole = scorer(spec)
    expected = whole.evaluate()
    assert list(expected) == ["accuracy", "loss", "test1/accuracy", "test1/loss"]
    for count in (2, 3):
        engines = [scorer(spec) for _ in range(count)]
        for change in (1.0, 1.5):
            vector = weights(whole) * np.float32(change)
            parts = []
            for index, engine in enumerate(engines):
                engine.load_weights(vector)
                done: list[int] = []
                parts.append(engine.evaluate_share(PartOfTest(index, count), done.append))
                assert done == [5] * sum(batches for _, batches in parts[-1])
            whole_again = scorer(spec)
            whole_again.load_weights(vector)
            assert combined(parts) == pytest.approx(dict(whole_again.evaluate()), rel=1e-12)
