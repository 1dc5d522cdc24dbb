"""Equal workers under ordinary jitter: mode weed-out must not throw their work away."""

from __future__ import annotations

import pytest

from speedo.master.plan import Plan
from speedo.messages import Action, Drop, Event, Merge
from speedo.sgd_modes.rules import AddDelta
from speedo.sgd_modes.weed_out import WeedOut
from tests.support.simulation.simulate import simulate
from tests.support.simulation.world import World


class Dropped:
    """Counts what was discarded and what was merged."""

    def __init__(self) -> None:
        self.dropped = self.merged = 0

    def saw(self, event: Event, now: float) -> None:
        """Not of interest."""

    def did(self, action: Action, now: float) -> None:
        self.dropped += isinstance(action, Drop)
        if isinstance(action, Merge):
            self.merged += len(action.parts)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("jitter", [0.1, 0.3])
def test_weed_out_loses_at_most_two_per_cent_of_equal_workers(workers: int, jitter: float) -> None:
    counts = Dropped()
    simulate(
        WeedOut(AddDelta()),
        Plan(8, 2000, workers=workers),
        world=World(jitter=jitter),
        keep_trace=False,
        observer=lambda trace: counts,
    )
    assert counts.merged == 2000
    assert counts.dropped <= 0.02 * (counts.merged + counts.dropped)
