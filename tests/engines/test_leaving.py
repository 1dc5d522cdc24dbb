"""Gradients that leave in parts and as factors, in both engines of Caffe's nets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.engines.base import ModelEngine
from speedo.engines.make import EngineChoice, make_engine
from speedo.engines.solver import SolverOverrides, SolverSpec, read_solver, solver_for_worker
from speedo.exchange.factors import Factors, FactorSpace, blocks_of
from speedo.exchange.vector import Vector
from tests.support.bundled_nets import Bench
from tests.support.nets import BATCH_NORM, LENET, SHARED, SMOOTH, net_text, write_solver

pytestmark = pytest.mark.caffe
Make = Callable[..., ModelEngine]

FROZEN = SMOOTH.replace("param { lr_mult: 1 }", "param { lr_mult: 0 }")
# An inner product over the last axis, one with another order of its weight, and two that learn nothing or share.
PRODUCTS = """
layer { name: "along" type: "InnerProduct" bottom: "data" top: "along"
  inner_product_param { num_output: 5 axis: -1 weight_filler { type: "xavier" } } }
layer { name: "turned" type: "InnerProduct" bottom: "along" top: "turned"
  inner_product_param { num_output: 40 transpose: true bias_term: false weight_filler { type: "xavier" } } }
layer { name: "sigmoid" type: "Sigmoid" bottom: "turned" top: "turned" }
layer { name: "frozen" type: "InnerProduct" bottom: "turned" top: "frozen" param { lr_mult: 0 }
  inner_product_param { num_output: 12 weight_filler { type: "xavier" } } }
layer { name: "one" type: "InnerProduct" bottom: "frozen" top: "one" param { name: "w" }
  inner_product_param { num_output: 12 weight_filler { type: "xavier" } } }
layer { name: "two" type: "InnerProduct" bottom: "one" top: "two" param { name: "w" }
  inner_product_param { num_output: 12 weight_filler { type: "xavier" } } }
layer { name: "unread" type: "InnerProduct" bottom: "turned" top: "unread"
  inner_product_param { num_output: 7 weight_filler { type: "xavier" } } }
layer { name: "silence" type: "Silence" bottom: "unread" }
layer { name: "relu" type: "ReLU" bottom: "two" top: "top" }
"""


@pytest.fixture(params=["caffe", pytest.param("torch", marks=pytest.mark.torch)])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes engines of one kind, alike for the same solver."""
    choice = EngineChoice(request.param, "cpu")
    with ExitStack() as made:

        def build(spec: SolverSpec, **options: Any) -> ModelEngine:
            text = solver_for_worker(spec, rank=0, count=1, batch_size=spec.batch_size, seed=7)
            return made.enter_context(
                closing(make_engine(choice, text, lr_policy=spec.lr_policy, folder=spec.folder))
            )

        yield build


def solver(home: Path, body: str, **fields: Any) -> SolverSpec:
    return read_solver(
        write_solver(home, net_text(body), test_iter=None, test_interval=None, **fields)
    )


@pytest.mark.parametrize("iter_size", [1, 2])
@pytest.mark.parametrize(
    "body", [LENET, SMOOTH, BATCH_NORM, SHARED, FROZEN, PRODUCTS],
    ids=["lenet", "smooth", "batch norm", "shared", "frozen", "products"],
)  # fmt: skip
def test_blobs_leave_once_and_final_the_last_layers_first(
    home: Path, make: Make, body: str, iter_size: int
) -> None:
    spec = solver(home, body, iter_size=iter_size)
    whole, early = make(spec), make(spec)
    expected, found = whole.layout.zeros(), np.full(early.layout.size, np.nan, np.float32)
    reported: list[slice] = []

    def done(start: int, stop: int) -> None:
        np.testing.assert_array_equal(found[start:stop], expected[start:stop])
        reported.append(slice(start, stop))

    assert whole.gradient(2, expected) == early.gradient(2, found, done)
    blobs = {place.start: blob.name for blob, place in early.layout.slices()}
    assert sorted(one.start for one in reported) == list(blobs)
    learning = [blobs[one.start] for one in reported if expected[one].any()]
    # Its sums are known before
    left = [layer_of(name) for name in learning if layer_of(name) != "bn"]
    layers = [layer_of(name) for name in blobs.values() if layer_of(name) in left]
    assert list(dict.fromkeys(left)) == list(dict.fromkeys(reversed(layers)))


def layer_of(blob: str) -> str:
    return blob.rpartition("/")[0]


def test_the_last_layer_leaves_while_the_first_has_no_gradient_yet(home: Path, make: Make) -> None:
    engine = make(solver(home, LENET))
    found = np.full(engine.layout.size, np.nan, np.float32)
    seen: list[bool] = []
    engine.gradient(1, found, lambda start, stop: seen.append(bool(np.isnan(found).any())))
    assert seen[0]
    assert not seen[-1]


def factors_of(engine: ModelEngine) -> tuple[Factors, ...]:
    products = engine.products()
    memory = np.full(FactorSpace.values_for(products, 1), np.nan, np.float32)
    return FactorSpace(products, 1, memory).of(0)


def product_of(factors: Factors) -> Vector:
    return (factors.left.T.astype(np.float64) @ factors.right).astype(np.float32).reshape(-1)


@pytest.mark.parametrize("iter_size", [1, 3])
def test_factors_multiply_to_the_gradient(home: Path, make: Make, iter_size: int) -> None:
    spec = solver(home, PRODUCTS, iter_size=iter_size)
    whole, apart = make(spec), make(spec)
    expected, found = whole.layout.zeros(), apart.layout.zeros()
    factors = factors_of(apart)
    rows = {one.product.name: one.product.rows // iter_size for one in factors}
    assert rows == {"along/0": 8 * 8, "turned/0": 8, "unread/0": 8, "ip/0": 8}
    seen: list[int] = []
    assert apart.gradient(1, found, lambda start, stop: seen.append(start), factors) == (
        whole.gradient(1, expected)
    )
    assert sorted(seen) == [place.start for _, place in whole.layout.slices()]
    for one in factors:
        place = slice(one.product.start, one.product.stop)
        found[place] = product_of(one)
        most = np.abs(expected[place]).max()
        np.testing.assert_allclose(found[place], expected[place], rtol=0, atol=1e-6 * most)
        assert (most == 0) == (one.product.name == "unread/0")
        expected[place] = found[place]
    np.testing.assert_array_equal(found, expected)  # the rest to the bit
    apart.gradient(1, found)  # without factors again
    whole.gradient(1, expected)
    np.testing.assert_array_equal(found, expected)


def test_adjusted_batches_count_in_the_rows(home: Path, make: Make) -> None:
    engine = make(solver(home, LENET))
    once = [one.rows for one in engine.products()]
    engine.adjust(None, None, None, 3)
    assert [one.rows for one in engine.products()] == [3 * rows for rows in once]
    found, expected = engine.layout.zeros(), engine.layout.zeros()
    factors = factors_of(engine)
    engine.gradient(1, found, factors=factors)
    again = make(solver(home, LENET, iter_size=3))
    again.gradient(1, expected)
    for one in factors:
        place = slice(one.product.start, one.product.stop)
        most = np.abs(expected[place]).max()
        np.testing.assert_allclose(product_of(one), expected[place], rtol=0, atol=1e-6 * most)


@pytest.mark.parametrize(
    ("net", "batch"), [("lenet", 16), pytest.param("alexnet", 2, marks=pytest.mark.slow)]
)
def test_the_sum_of_two_workers_factors_is_the_ring_s(
    tmp_path: Path, make: Make, net: str, batch: int
) -> None:
    """Weighted by samples, for the bundled nets."""
    bench = Bench.make(net, tmp_path)
    spec = read_solver(bench.solver(batch), overrides=SolverOverrides(engine="caffe"))
    whole = make(spec)
    products, weights = whole.products(), (0.75, 0.25)
    space = FactorSpace(products, 2, np.empty(FactorSpace.values_for(products, 2), np.float32))
    mean, one = whole.layout.zeros(), whole.layout.zeros()
    for weight in weights:
        whole.gradient(1, one)
        mean += np.float32(weight) * one
    apart = make(spec)  # dropout's numbers begin again
    for worker in range(2):
        apart.gradient(1, one, factors=space.of(worker))
    found = np.empty_like(mean)
    for number, product in enumerate(products):
        middle = blocks_of(product) // 2
        add_up = partial(space.add_up, number, weights, found)
        add_up(slice(middle, None))
        add_up(slice(0, middle))
        place = slice(product.start, product.stop)
        atol = 1e-6 * np.abs(mean[place]).max()
        np.testing.assert_allclose(found[place], mean[place], rtol=0, atol=atol)
