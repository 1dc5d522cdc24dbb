"""Scaling by staleness, catch-ups and adaptive turns: worked sequences on the simulator's clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from speedo.master.plan import Plan
from speedo.messages import Action, Event, Merge, Train, Trained
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from speedo.sgd_modes.turn_length import AdaptiveLength
from tests.support.seen import Seen
from tests.support.simulation.simulate import Simulation, simulate
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.world import World

BATCH = 10
Script = Callable[[SimulatedCluster], None]


def run(
    options: dict[str, Any],
    *,
    iterations: int = 60,
    workers: int = 3,
    slowness: tuple[float, ...] = (1.0,),
    world: World | None = None,
    plan: dict[str, Any] | None = None,
    turns: tuple[int, float | None, float, int] | None = None,
    **given: Any,
) -> tuple[Simulation, Seen]:
    """A step lasts 0.1 s, times the slowness of its worker."""
    seen = Seen()
    strategy = make_strategy(make_config({"workers": workers, **options}), BATCH, turns=turns)
    even = World(
        jitter=0.0, latency_s=0.0, slowness=lambda worker: slowness[worker % len(slowness)]
    )
    found = simulate(
        strategy,
        Plan(BATCH, iterations, workers=workers, **(plan or {})),
        world=world or even,
        observer=seen.follow,
        **given,
    )
    return found, seen


# ---------------------------------------------------------------- staleness


@pytest.mark.parametrize("mode", ["async", "partial", "weed-out"])
@pytest.mark.parametrize("gather_s", [0.0, 1.0])
@pytest.mark.parametrize("servers", [0, 2])
def test_each_merge_is_divided_by_the_staleness_of_its_result(
    mode: str, gather_s: float, servers: int
) -> None:
    world = World(gather_s=gather_s)
    options = {"mode": mode, "staleness_scaling": True}
    found, seen = run(options, workers=5, world=world, servers=servers)
    merges = seen.all(Merge)
    assert len({one.rate for one in merges}) > 2
    for merge in merges:
        (part,) = merge.parts
        assert merge.rate == 1.0 / max(1, part.staleness)
    if servers:  # each has the factor of each merge
        alone, _ = run(options, workers=5, world=world)
        assert found.center.vector.tobytes() == alone.center.vector.tobytes()


def test_three_equal_workers_have_half_of_each_delta_merged_after_the_first_two() -> None:
    """Staleness is 0, 1, then always 2: that of the two others."""
    _, seen = run({"mode": "async", "staleness_scaling": True})
    rates = [one.rate for one in seen.all(Merge)]
    assert rates[:4] == [1.0, 1.0, 0.5, 0.5]
    assert set(rates[4:]) == {0.5}


def test_a_delta_scale_that_is_given_is_divided() -> None:
    _, seen = run({"mode": "async", "staleness_scaling": True, "delta_scale": 0.6})
    assert [one.rate for one in seen.all(Merge)][2:6] == [0.3] * 4


def test_a_worker_alone_has_its_deltas_merged_whole() -> None:
    scaled, _ = run({"mode": "async", "staleness_scaling": True}, workers=1)
    plain, _ = run({"mode": "async"}, workers=1)
    assert scaled.center.vector.tobytes() == plain.center.vector.tobytes()


# ---------------------------------------------------------------- catching up


def told(actions: list[Action]) -> str:
    """Merges as `+0`, commands to train as `0`; those of an event together."""
    words = []
    for action in actions:
        if isinstance(action, Merge):
            words.append(f" +{action.parts[0].worker}")
        elif isinstance(action, Train):
            words.append(f" {action.worker}")
    return "".join(words)


def catching_up(script: Script = lambda cluster: None) -> str:
    """Worker 2 needs 0.35 s for a turn, the others 0.1 and 0.11 s."""
    _, seen = run(
        {"mode": "partial", "catch_up": True, "max_advance": 2},
        iterations=12,
        slowness=(1.0, 1.1, 3.5, 1.0),
        script=script,
    )
    return told(seen.actions)


def test_all_stop_until_the_slowest_has_delivered_and_then_all_start() -> None:
    """0 and 1 deliver, 0 again and is two ahead of 2; 1 and 2 deliver once more; all start."""
    once = " +0 0 +1 1 +0 +1 +2 0 1 2"
    assert catching_up().startswith(" 0 1 2" + once + once[: -len(" 2")])


def test_a_death_ends_a_catch_up_that_waited_for_it_alone() -> None:
    text = catching_up(lambda cluster: cluster.die(2, 0.3))
    assert text.startswith(" 0 1 2 +0 0 +1 1 +0 +1 0 1 +0 0 +1 1")


def test_the_death_of_the_fastest_leaves_the_others_to_finish() -> None:
    text = catching_up(lambda cluster: cluster.die(0, 0.3))
    assert text.startswith(" 0 1 2 +0 0 +1 1 +0 +1 +2 1 2 +1 1")


def test_who_joins_during_a_catch_up_starts_with_all() -> None:
    text = catching_up(lambda cluster: cluster.join(3, 0.3))
    assert text.startswith(" 0 1 2 +0 0 +1 1 +0 +1 +2 0 1 2 3")


def test_a_catch_up_works_with_results_that_are_decided_together() -> None:
    found, seen = run(
        {"mode": "partial", "catch_up": True, "max_advance": 1},
        workers=4,
        world=World(gather_s=1.0),
    )
    assert found.outcome.complete
    text = told(seen.actions)
    assert text.startswith(" 0 1 2 3 +")
    for words in text.split(" 0 1 2 3")[1:-1]:  # each merges once, and then all start
        assert sorted(words.split()) == ["+0", "+1", "+2", "+3"]


# ---------------------------------------------------------------- adaptive turns


def losing(loss: Callable[[int], float]) -> Script:
    """The loss of each result is that of the version which is there then."""

    def script(cluster: SimulatedCluster) -> None:
        def deliver(event: Event) -> Event:
            if isinstance(event, Trained):
                return replace(event, loss=loss(event.ticket), losses=())
            return event

        cluster.deliver = deliver

    return script


@pytest.mark.parametrize("mode", ["sync", "async", "partial", "weed-out", "easgd"])
def test_turns_get_shorter_as_the_loss_falls(mode: str) -> None:
    """Windows of 20 iterations: losses of 4, 4, 1, 0.25 make turns of 10, 10, 10, 5, then 3 steps."""
    means = iter([4.0] * 4 + [1.0] * 2 + [0.25] * 4 + [0.01] * 99)
    options = {"mode": mode, "local_steps": "adaptive:10/20"}
    _, seen = run(options, workers=1, iterations=90, script=losing(lambda ticket: next(means)))
    turns = [(one.iteration, one.steps) for one in seen.all(Train)]
    assert turns[:6] == [(0, 10), (10, 10), (20, 10), (30, 10), (40, 10), (50, 10)]
    assert turns[6:10] == [(60, 5), (65, 5), (70, 5), (75, 5)]
    assert turns[10:] == [(80, 3), (83, 3), (86, 3), (89, 1)]


def test_an_adaptive_run_replays_and_the_state_of_a_resumed_one_is_that_of_the_former() -> None:
    options = {"mode": "weed-out", "local_steps": "adaptive:8/5"}
    (first, seen), (second, _) = run(options), run(options)
    assert first.trace.text() == second.trace.text()
    assert len({one.steps for one in seen.all(Train)}) > 1
    length = first.coordinator.strategy.local_steps
    assert isinstance(length, AdaptiveLength)
    assert length.first is not None
    third, resumed = run(options, turns=length.state)
    assert resumed.all(Train)[0].steps == length.at(0) < 8
    kept = third.coordinator.strategy.local_steps
    assert isinstance(kept, AdaptiveLength)
    assert kept.first == length.first


def test_a_team_ends_its_stretches_where_the_length_is_decided() -> None:
    """So the model is that of workers that report after each round; rounds of one step are rounded in another way."""
    options = {"mode": "sync", "local_steps": "adaptive:8/24"}
    given: dict[str, Any] = {"iterations": 192, "samples_per_step": BATCH}
    places = {"places": lambda worker: "host"}
    alone, each = run(options, **given)
    team, together = run(options, plan={"teams": True, "stretch_s": 3.0}, **places, **given)
    assert len(together.all(Merge)) < len(each.all(Merge))
    assert len({one.steps for one in together.all(Train)}) > 2
    np.testing.assert_allclose(team.center.vector, alone.center.vector, rtol=1e-5)


def test_a_phase_decides_by_its_own_losses() -> None:
    phases = [
        {"mode": "async", "iterations": 40, "local_steps": "adaptive:4/20"},
        {"mode": "easgd", "local_steps": "adaptive:10/20"},
    ]
    options = {"mode": "hybrid", "phases": phases}
    means = iter([4.0] * 5 + [1.0] * 5 + [0.4] * 2 + [0.1] * 99)
    _, seen = run(options, workers=1, iterations=100, script=losing(lambda ticket: next(means)))
    steps = [one.steps for one in seen.all(Train)]
    assert steps == [4] * 10 + [10] * 4 + [5] * 4
