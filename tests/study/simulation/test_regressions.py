"""What the fuzz, or a reader, found once: each by name, in the smallest run that shows it."""

from __future__ import annotations

from typing import Any

import pytest

from speedo.master.coordinator import STRIKES, Coordinator
from speedo.master.driver import Limits
from speedo.master.plan import Plan
from speedo.master.reasons import too_few_left
from speedo.messages import (
    Action,
    Event,
    Finish,
    Joined,
    Left,
    Merge,
    Refused,
    Train,
    Trained,
)
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.base import Strategy
from speedo.sgd_modes.easgd import easgd
from speedo.sgd_modes.hybrid import Hybrid, Phase
from speedo.sgd_modes.rules import AddDelta, AverageDeltas
from speedo.sgd_modes.synchronous import Synchronous
from speedo.storage import keys
from tests.support.receiving import handle
from tests.support.simulation.simulate import Simulation, simulate
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.trace import Trace
from tests.support.simulation.world import Faults, World


def run(strategy: Strategy, plan: Plan, **options: Any) -> tuple[Simulation, list[str]]:
    """A simulation whose trace is the list."""
    simulation = simulate(strategy, plan, **options)
    assert simulation.trace.lines is not None
    return simulation, [line[11:].strip() for line in simulation.trace.lines]


def test_a_repeated_result_does_not_take_the_held_one_with_it() -> None:
    """Sync held worker 0's payload; the late repetition made the center forget it, and the merge failed."""
    world = World(jitter=0.0, slowness=lambda worker: 1.0 + worker, faults=Faults(repeat=1.0))
    simulation, lines = run(Synchronous(AverageDeltas()), Plan(10, 2, workers=2), world=world)
    assert simulation.outcome.complete
    assert "< late 0#1: its ticket is not outstanding" in lines
    assert "< merge 0#1 (staleness 0), 1#2 (staleness 1) x 1 -> version 1, iteration 2" in lines


def test_a_run_that_set_its_workers_aside_does_not_wait_for_ever() -> None:
    """Only joins and deaths started the wait for new workers; one set aside did not."""

    def poison_worker_0(cluster: SimulatedCluster) -> None:
        def poison(event: Event) -> Event:
            if isinstance(event, Trained) and event.worker == 0:
                cluster.poison(0, event.ticket)
            return event

        cluster.deliver = poison

    plan = Plan(10, 1000, workers=2, min_workers=2)
    limits = Limits(join_s=7.0)
    simulation, _ = run(Asynchronous(AddDelta()), plan, script=poison_worker_0, limits=limits)
    assert not simulation.outcome.complete
    assert simulation.outcome.reason == too_few_left(1, 2, 7.0)


def test_waiting_for_workers_ends_at_times_that_floats_cannot_hold() -> None:
    """0.2020 + 15 s - 15 s is a little less than 0.2020: the loop span at that moment for ever."""
    for moment in (0.1, 0.202, 0.7, 1.1, 12.202):
        simulation, _ = run(
            Asynchronous(AddDelta()),
            Plan(10, 10_000, workers=1),
            script=lambda cluster, moment=moment: cluster.die(0, moment),
            limits=Limits(join_s=15.0),
        )
        assert simulation.cluster.now == pytest.approx(moment + 15.1)  # and a test of 0.1 s


def test_easgd_starts_from_the_center_after_a_refused_result() -> None:
    """It went on from its own weights, which the failed turn had spoilt, and was set aside."""
    coordinator = Coordinator(easgd(), Plan(10, 100, workers=1))
    (first,) = handle(coordinator, Joined(0, 1, 10))
    assert isinstance(first, Train)
    merge, second = handle(coordinator, Trained(0, 1, first.ticket, 0.5, 10))
    assert isinstance(merge, Merge)
    assert isinstance(second, Train)
    assert second.moving_rate == 0.9
    _, third = handle(coordinator, Refused(0, 1, second.ticket, "NaN"))
    assert isinstance(third, Train)
    assert (third.version, third.moving_rate) == (1, None)


def test_work_that_is_done_counts_as_done_though_the_last_worker_is_set_aside() -> None:
    """The round closed with the result of one that had left, and that was all; it said `incomplete`."""
    coordinator = Coordinator(Synchronous(AverageDeltas()), Plan(10, 5, workers=2))
    tickets: dict[int, int] = {}

    def do(event: Event) -> list[Action]:
        actions = handle(coordinator, event)
        tickets.update({one.worker: one.ticket for one in actions if isinstance(one, Train)})
        return actions

    do(Joined(0, 1, 5))
    do(Joined(1, 1, 10))
    for _ in range(STRIKES - 1):  # 0 fails, so the next round is worker 1's alone
        do(Trained(1, 1, tickets[1], 0.5, 10))
        do(Refused(0, 1, tickets[0], "NaN"))
        do(Trained(1, 1, tickets[1], 0.5, 10))
    assert coordinator.samples == 40
    do(Trained(1, 1, tickets[1], 0.5, 10))
    do(Left(1, 1, "killed"))
    actions = do(Refused(0, 1, tickets[0], "NaN"))
    assert [type(action).__name__ for action in actions] == ["Drop", "SetAside", "Merge", "Finish"]
    assert actions[-1] == Finish(True, "reached max_iter 5")


def test_news_of_an_old_incarnation_leaves_the_center_of_the_new_one_alone() -> None:
    """A late `Left` of incarnation 1 released the center that incarnation 2 was about to fetch."""

    def replace_worker_0(cluster: SimulatedCluster) -> Event | None:
        assert cluster.forget(0) == 1
        cluster.join(0, cluster.now)
        cluster.at(cluster.now + 0.02, lambda: Left(0, 1, "found dead long after"))
        return None

    simulation, lines = run(
        Asynchronous(AddDelta()),
        Plan(10, 20, workers=2),
        world=World(jitter=0.0, slowness=lambda worker: (3.0, 0.5)[worker]),
        script=lambda cluster: cluster.at(0.06, lambda: replace_worker_0(cluster)),
    )
    assert simulation.outcome.complete
    assert "< train worker 0.2 ticket 4 from center 1, 1 steps at iteration 1" in lines


def test_nothing_but_the_last_center_is_left_in_the_store() -> None:
    """Each worker kept the center of its last turn alive beyond the end."""
    simulation, _ = run(Asynchronous(AddDelta()), Plan(10, 30, workers=4))
    assert simulation.cluster.store.keys(keys.prefix("simulated")) == ["speedo:simulated:center:30"]


def test_a_phase_of_longer_turns_is_not_taken_for_hung_workers() -> None:
    """The deadline came from the turns of one step before; 100 steps of the next phase took far longer."""
    strategy = Hybrid(
        [
            Phase(lambda: Asynchronous(AddDelta()), samples=200),
            Phase(lambda: Asynchronous(AddDelta(), local_steps=100), samples=10_000),
        ]
    )
    world = World(step_s=0.5)  # turns of 0.5 s, then of 50 s: 3 x 0.5 s + 10 s would be too little
    simulation, lines = run(strategy, Plan(10, 400, workers=2), world=world)
    assert simulation.outcome.complete
    assert not any("leaves" in line for line in lines)


def test_a_worker_is_credited_with_the_samples_it_was_asked_for() -> None:
    coordinator = Coordinator(Asynchronous(AddDelta()), Plan(10, 100, workers=1))
    (train,) = handle(coordinator, Joined(0, 1, 10))
    assert isinstance(train, Train)
    handle(coordinator, Trained(0, 1, train.ticket, 0.5, 1_000_000))
    assert coordinator.samples == 10


def test_a_simulation_that_keeps_no_trace_has_none() -> None:
    simulation = simulate(Asynchronous(AddDelta()), Plan(10, 5, workers=1), keep_trace=False)
    assert simulation.trace.text() == Trace(keep=False).text() == "\n"
