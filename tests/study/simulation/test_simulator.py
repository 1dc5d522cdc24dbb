from __future__ import annotations

import pytest

from speedo.errors import TrainingStopped
from speedo.master.plan import Plan
from speedo.messages import Decision, Result
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.rules import AddDelta
from speedo.study.simulation import simulator
from tests.support.simulation.simulate import simulate
from tests.support.simulation.simulator import SimulatedCluster

PLAN = Plan(batch=8, max_iter=20, workers=2)


class NeverMerges(Asynchronous):
    def on_result(self, result: Result) -> Decision:
        return Decision(discard=(result.worker,), train=(result.worker,))


def test_a_run_that_only_discards_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "MOST_EVENTS", 300)
    with pytest.raises(TrainingStopped, match="no progress: 300 events since version 0, at"):
        simulate(NeverMerges(AddDelta(1.0)), PLAN)


def test_happenings_that_lead_to_nothing_end_a_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each puts the next one into the heap, for the same moment, and no event ever reaches the driver."""
    monkeypatch.setattr(simulator, "MOST_EVENTS", 300)

    def script(cluster: SimulatedCluster) -> None:
        def nothing() -> None:
            cluster.at(cluster.now, nothing)

        cluster.at(0.05, nothing)

    with pytest.raises(TrainingStopped, match="no progress"):
        simulate(Asynchronous(AddDelta(1.0)), PLAN, script=script)


def test_a_long_run_that_makes_progress_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "MOST_EVENTS", 300)
    done = simulate(Asynchronous(AddDelta(1.0)), Plan(batch=8, max_iter=2_000, workers=2))
    assert done.outcome.complete
