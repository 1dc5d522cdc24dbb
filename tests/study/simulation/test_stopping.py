"""When runs stop, and how long their turns are: worked sequences on the simulator's clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from speedo import messages
from speedo.master.plan import Plan
from speedo.master.stopping import Stopping, StopRules
from speedo.messages import Evaluate, Event, Finish, KeepBest, Merge, Train
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from tests.support.seen import Seen
from tests.support.simulation.simulate import Simulation, simulate
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.world import World

BATCH = 10
Curve = Callable[[int], float]  # accuracy by version


def run(
    options: dict[str, Any],
    rules: StopRules | None = None,
    *,
    iterations: int = 100,
    workers: int = 1,
    test_interval: int = 5,
    accuracy: Curve = lambda version: 0.0,
    stopping: Stopping | None = None,
    **given: Any,
) -> tuple[Simulation, Seen]:
    """A step lasts 0.1 s. With one worker the version is the number of its turns."""
    seen = Seen()

    def script(cluster: SimulatedCluster) -> None:
        def deliver(event: Event) -> Event:
            if isinstance(event, messages.Tested):
                return replace(event, metrics={"accuracy": accuracy(event.version)})
            return event

        cluster.deliver = deliver

    strategy = make_strategy(make_config({"workers": workers, **options}), BATCH)
    found = simulate(
        strategy,
        Plan(BATCH, iterations, workers=workers, test_interval=test_interval),
        world=World(jitter=0.0, latency_s=0.0),
        observer=seen.follow,
        script=script,
        stopping=stopping or Stopping(rules or StopRules()),
        **given,
    )
    return found, seen


def test_a_target_ends_the_run_after_the_first_test_that_reaches_it() -> None:
    found, seen = run(
        {"mode": "async"}, StopRules(target="accuracy>=0.5"), accuracy=lambda v: v / 30
    )
    assert found.outcome.complete
    assert found.outcome.reason == "reached the target accuracy>=0.5: 0.5 at iteration 15"
    assert [one.iteration for one in seen.all(Evaluate)][:3] == [5, 10, 15]
    assert 15 <= found.outcome.iteration <= 16  # the test takes no time
    assert found.outcome.metrics  # of the final test


def test_patience_ends_the_run_after_so_many_tests_without_a_better_one() -> None:
    values = {5: 0.1, 10: 0.4, 15: 0.4, 20: 0.3, 25: 0.4}
    found, seen = run(
        {"mode": "async"},
        StopRules(patience=3, keep_best=True),
        accuracy=lambda v: values.get(v, 0.2),
    )
    assert found.outcome.reason == "no better accuracy in 3 tests; the best is 0.4 at iteration 10"
    assert 25 <= found.outcome.iteration <= 26
    assert [(one.iteration, one.value) for one in seen.all(KeepBest)] == [(5, 0.1), (10, 0.4)]


def test_a_resumed_run_keeps_the_count_of_patience_and_the_best_value() -> None:
    found, seen = run(
        {"mode": "async"},
        stopping=Stopping(StopRules(patience=3, keep_best=True), 0.4, 2, 10),
        accuracy=lambda v: 0.4,
    )
    assert found.outcome.reason == "no better accuracy in 3 tests; the best is 0.4 at iteration 10"
    assert 5 <= found.outcome.iteration <= 6
    assert not seen.all(KeepBest)


def test_the_last_test_of_all_may_be_the_best() -> None:
    _, seen = run(
        {"mode": "async"}, StopRules(keep_best=True), iterations=12, accuracy=lambda v: v / 100
    )
    assert [one.iteration for one in seen.all(KeepBest)] == [5, 10, 12]


@pytest.mark.parametrize(("before", "iteration"), [(0.0, 10), (0.7, 3)])
def test_time_ends_the_run_and_the_time_of_before_counts(before: float, iteration: int) -> None:
    found, seen = run({"mode": "async"}, StopRules(max_seconds=1.05), seconds_before=before)
    assert found.outcome.reason == "trained for 1.05 s, the max_seconds"
    assert found.outcome.complete
    assert found.outcome.iteration == iteration
    assert len(seen.all(Finish)) == 1


def test_a_run_that_had_its_time_before_ends_with_its_first_turn() -> None:
    found, seen = run({"mode": "async"}, StopRules(max_seconds=5), seconds_before=6.0)
    assert found.outcome.complete
    assert found.outcome.iteration <= 1
    assert len(seen.all(Train)) <= 2


@pytest.mark.parametrize("mode", ["async", "easgd", "partial", "weed-out", "sync"])
def test_a_schedule_changes_the_length_of_turns_at_its_iteration(mode: str) -> None:
    _, seen = run({"mode": mode, "local_steps": "1,10@20,3@40"}, iterations=60)
    turns = [(one.iteration, one.steps) for one in seen.all(Train)]
    assert [steps for at, steps in turns if at < 20] == [1] * 20
    assert [steps for at, steps in turns if 20 <= at < 40] == [10, 10]
    late = [steps for at, steps in turns if at >= 40]
    assert late == [3] * 6 + [2]


def test_a_resumed_run_is_at_its_place_in_the_schedule() -> None:
    """The iteration is all that a schedule depends on: 25 iterations are merged already."""
    length = make_strategy(
        make_config({"mode": "async", "local_steps": "1,10@20"}), BATCH
    ).local_steps
    assert not isinstance(length, int)
    assert length.at(25) == 10


@pytest.mark.parametrize("mode", ["async", "easgd", "partial", "weed-out"])
def test_a_turn_ends_once_it_has_passed_the_norm(mode: str) -> None:
    """The way to the optimum gets shorter with each step, so later turns have more steps, and never too many."""
    options = {"mode": mode, "local_steps": 8, "sync_when": "norm>0.3"}
    found, seen = run(options, iterations=60, workers=2)
    steps = [part.steps for merge in seen.all(Merge) for part in merge.parts]
    assert steps[0] < 8
    assert steps[0] <= max(steps)
    assert len(set(steps)) > 1
    assert all(1 <= one <= 8 for one in steps)
    merged = sum(part.samples for merge in seen.all(Merge) for part in merge.parts)
    assert merged == BATCH * sum(steps) == found.outcome.samples >= 60 * BATCH


def test_a_phase_ends_by_a_condition_and_has_its_own_test_interval() -> None:
    options = {
        "mode": "hybrid",
        "phases": [
            {"mode": "sync", "until": "accuracy>=0.5", "test_interval": 2, "lr": 0.01},
            {"mode": "async", "test_interval": 10},
        ],
    }
    _, seen = run(options, iterations=30, accuracy=lambda v: v / 12, test_interval=5)
    assert [one.iteration for one in seen.all(Evaluate)] == [2, 4, 6, 10, 20]
    rates = [one.tuning.lr for one in seen.all(Train)]
    own = rates.count(0.01)
    assert rates == [0.01] * own + [None] * (30 - own)
    assert 6 <= own <= 7


def test_a_phase_with_its_own_batch_counts_all_its_samples() -> None:
    options = {
        "mode": "hybrid",
        "phases": [{"mode": "async", "iterations": 6, "batch": 30}, {"mode": "async"}],
    }
    found, seen = run(options, iterations=12)
    assert [part.samples for merge in seen.all(Merge) for part in merge.parts] == [30] * 2 + [
        10
    ] * 6
    assert [one.iteration for one in seen.all(Merge)] == [3, 6, 7, 8, 9, 10, 11, 12]
    assert found.outcome.samples == 120
