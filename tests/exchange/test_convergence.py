"""A run with compressed payloads comes as far as one without, on the exact toy problem."""

from __future__ import annotations

from functools import cache

import pytest

from speedo.engines.quadratic import QuadraticEngine
from speedo.exchange.codecs import Compression
from speedo.master.plan import Plan
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from tests.support.simulation.simulate import simulate
from tests.support.simulation.world import World

SIZE, BATCH, ITERATIONS = 500, 4, 600


@cache
def loss_after(mode: str, payload: str, center: str = "none") -> float:
    """What two workers leave of the loss that they began with."""
    options = {"mode": mode, "workers": 2, "compress": payload, "compress_center": center}
    simulation = simulate(
        make_strategy(make_config(options), BATCH),
        Plan(BATCH, ITERATIONS, 2),
        world=World(compression=Compression(payload, center)),
        size=SIZE,
        keep_trace=False,
    )
    assert simulation.outcome.complete
    engine = QuadraticEngine(SIZE)
    begun = engine.evaluate()["loss"]
    engine.load_weights(simulation.center.vector)
    return engine.evaluate()["loss"] / begun


@pytest.mark.parametrize("payload", ["none", "bfloat16", "int8", "topk:0.1", "sparse:0.1"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_run_comes_as_far_with_compressed_deltas(mode: str, payload: str) -> None:
    assert loss_after(mode, payload) < 2e-6


@pytest.mark.parametrize("payload", ["none", "bfloat16", "int8"])
def test_a_run_comes_almost_as_far_with_rounded_weights(payload: str) -> None:
    """Without feedback int8 would stop at 2e-2, bfloat16 at 1e-3."""
    assert loss_after("easgd", payload) < 2e-5


def test_a_run_comes_as_far_from_rounded_centers() -> None:
    assert loss_after("sync", "none", "bfloat16") < 1e-4
