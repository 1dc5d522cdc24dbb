"""Which inner products are exchanged as factors, and what their sum is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedo.exchange.factors import BLOCK, FactorSpace, Product, blocks_of, choices, table

FC6 = Product("fc6/0", 1000, 4096, 9216, 64)
IP2 = Product("ip2/0", 0, 10, 500, 64)


def test_alexnet_s_first_product_moves_a_twenty_second_of_the_ring_s_bytes() -> None:
    """64 records each of four hosts: 3 x 64 x (4096 + 9216) x 4 bytes for 2 x 3/4 x 4096 x 9216 x 4."""
    (choice,) = choices([FC6], [1, 1, 1, 1])
    assert (choice.factors, choice.ring) == (10_223_616, 226_492_416)
    assert choice.pays
    assert list(table([choice])) == [
        "fc6/0: factors (10.22 MB a round as factors of 64 rows a worker, 226.49 MB in the ring)"
    ]


@pytest.mark.parametrize("workers", [[1], [3], [1, 1], [2, 1, 1]])
def test_a_product_smaller_than_its_rows_stays_in_the_ring(workers: list[int]) -> None:
    assert not any(choice.pays for choice in choices([IP2], workers))


def test_within_one_host_nothing_pays() -> None:
    (choice,) = choices([FC6], [8])
    assert not choice.pays


def test_the_workers_of_a_host_bring_their_rows_each() -> None:
    """A host sends on those of all hosts but the next one's."""
    (choice,) = choices([FC6], [4, 2, 1])
    assert choice.factors == 6 * 64 * (4096 + 9216) * 4


@settings(max_examples=40, deadline=None)
@given(
    left=st.integers(1, 3 * BLOCK),
    right=st.integers(1, 40),
    rows=st.integers(1, 9),
    workers=st.integers(1, 4),
    cut=st.integers(0, 4),
    data=st.data(),
)
def test_the_sum_is_that_of_the_weighted_gradients_whoever_makes_which_blocks(
    left: int, right: int, rows: int, workers: int, cut: int, data: st.DataObject
) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    products = (Product("other/0", 0, 2, 3, rows), Product("ip/0", 6, left, right, rows))
    memory = random.standard_normal(FactorSpace.values_for(products, workers)).astype(np.float32)
    space = FactorSpace(products, workers, memory)
    weights = random.dirichlet(np.ones(workers))
    kept, size = memory.copy(), 6 + left * right + 5
    whole, parts = np.zeros(size, np.float32), np.zeros(size, np.float32)
    space.add_up(1, weights, whole, slice(None))
    for blocks in (slice(cut, None), slice(0, cut)):
        space.add_up(1, weights, parts, blocks)
    np.testing.assert_array_equal(parts, whole)
    np.testing.assert_array_equal(memory, kept)
    assert blocks_of(products[1]) == -(-left // BLOCK)
    expected = np.zeros((left, right))
    for worker, weight in enumerate(weights):
        factors = space.of(worker)[1]
        expected += weight * (factors.left.T.astype(np.float64) @ factors.right)
    found = whole[6 : 6 + left * right].reshape(left, right)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max() + 1e-7)
    assert not whole[:6].any()
    assert not whole[6 + left * right :].any()
