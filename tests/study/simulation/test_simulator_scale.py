"""A thousand workers in every mode, and runs that replay to the byte.

How long they take is measured by `bench/simulator.py`.
"""

from __future__ import annotations

import pytest

from speedo.master.plan import Plan
from speedo.messages import Action, Drop, Event, Merge, Trained
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from tests.support.every_mode import MODES, options_of
from tests.support.simulation.simulate import Simulation, simulate
from tests.support.simulation.world import Faults, World

BATCH = 10
FAULTS = Faults(die=0.02, lose=0.01, repeat=0.05, late=0.02, poison=0.02, leave=0.02, fail=0.02,
                return_s=0.5)  # fmt: skip


class Counts:
    """Results that came, and what became of them."""

    def __init__(self) -> None:
        self.came = self.merged = self.dropped = 0

    def saw(self, event: Event, now: float) -> None:
        self.came += isinstance(event, Trained)

    def did(self, action: Action, now: float) -> None:
        if isinstance(action, Merge):
            self.merged += len(action.parts)
        self.dropped += isinstance(action, Drop)


def small(mode: str, seed: int) -> Simulation:
    strategy = make_strategy(make_config(options_of(mode, 300)), BATCH)
    return simulate(strategy, Plan(BATCH, 300, workers=12), world=World(faults=FAULTS), seed=seed)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_replays_to_the_byte_with_its_seed_and_differs_with_another(mode: str) -> None:
    first, again, other = small(mode, 1), small(mode, 1), small(mode, 2)
    assert first.outcome.complete
    assert first.trace.text() == again.trace.text()
    assert first.center.vector.tobytes() == again.center.vector.tobytes()
    assert first.trace.text() != other.trace.text()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_thousand_workers_deliver_five_thousand_results(mode: str) -> None:
    counts = Counts()
    simulation = simulate(
        make_strategy(make_config(options_of(mode, 5_000)), BATCH),
        Plan(BATCH, 5_000, workers=1000),
        keep_trace=False,
        observer=lambda trace: counts,
    )
    assert simulation.outcome.complete
    assert counts.merged == 5_000
    assert counts.came >= 5_000
    assert counts.came == counts.merged + counts.dropped
    assert (counts.dropped > 500) == (mode == "weed-out")
