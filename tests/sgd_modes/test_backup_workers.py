"""Rounds that do not wait for their stragglers, in the simulator: what one that is ten times slower costs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from speedo.exchange.vector import Vector
from speedo.master.plan import Plan
from speedo.messages import Drop, Merge
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from tests.support.replica import GRADIENT_LR
from tests.support.simulation.simulate import Simulation, simulate
from tests.support.simulation.world import World

WORKERS, ITERATIONS = 8, 200


def update(gradient: Vector, center: Vector, iteration: int) -> None:
    center -= np.float32(GRADIENT_LR) * gradient


def train(slowest: float, **options: Any) -> Simulation:
    """A sync run of 8 workers with an eighth of the batch each; worker 3 is so many times slower."""
    config = make_config({"mode": "sync", "workers": WORKERS, **options})
    return simulate(
        make_strategy(config, 16, update),
        Plan(16, ITERATIONS, workers=WORKERS),
        world=World(slowness=lambda worker: slowest if worker == 3 else 1.0),
        samples_per_step=2,
    )


@pytest.mark.slow
@pytest.mark.parametrize("extra", [{}, {"server_gradient": True}])
def test_one_backup_bears_a_straggler_ten_times_slower(extra: dict[str, Any]) -> None:
    """Seven workers of eight do the same work: 8 / 7 of the time, and a little for the end."""
    healthy = train(1.0, **extra).outcome
    waiting = train(10.0, **extra).outcome
    backed = train(10.0, backup_workers=1, **extra).outcome
    assert healthy.complete
    assert backed.complete
    assert waiting.seconds > 9 * healthy.seconds
    assert backed.seconds <= 1.3 * healthy.seconds


def test_with_a_healthy_cluster_a_backup_costs_the_share_that_is_not_merged() -> None:
    assert train(1.0, backup_workers=1).outcome.seconds <= 1.3 * train(1.0).outcome.seconds


def test_every_round_merges_seven_results_and_the_straggler_is_told_what_became_of_its_own() -> (
    None
):
    sizes: Counter[int] = Counter()
    dropped: Counter[tuple[int, str]] = Counter()

    class Watch:
        def saw(self, event: object, now: float) -> None:
            """Only what is done counts."""

        def did(self, action: object, now: float) -> None:
            if isinstance(action, Merge):
                sizes[len(action.parts)] += 1
            elif isinstance(action, Drop):
                dropped[action.worker, action.decision] += 1

    simulate(
        make_strategy(make_config({"workers": WORKERS, "backup_workers": 1}), 16),
        Plan(16, ITERATIONS, workers=WORKERS),
        world=World(jitter=0.0, slowness=lambda worker: 10.0 if worker == 3 else 1.0),
        samples_per_step=2,
        observer=lambda trace: Watch(),
    )
    assert sizes[7] >= ITERATIONS
    assert sum(sizes.values()) - sizes[7] <= 3  # the last rounds, when the work runs out
    assert dropped[3, "discarded"] >= 20
