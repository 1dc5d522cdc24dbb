"""Every wait of the run loop has its deadline, and what misses it becomes an event with its cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from speedo import messages
from speedo.master.driver import Limits
from speedo.master.plan import Plan
from speedo.master.reasons import (
    busy_tester,
    silent_tester,
    too_few_joined,
    too_few_left,
    turn_overdue,
)
from speedo.master.turn_deadlines import HEARTBEAT_S
from speedo.messages import Action, Event, Snapshot, Trained
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.rules import AddDelta, AverageDeltas
from speedo.sgd_modes.synchronous import Synchronous
from tests.support.simulation.simulate import Simulation, simulate
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.world import World


def run(plan: Plan, **options: Any) -> Simulation:
    options.setdefault("strategy", Asynchronous(AddDelta()))
    return simulate(options.pop("strategy"), plan, **{"world": World(jitter=0.0), **options})


def lines(simulation: Simulation, *words: str) -> list[str]:
    assert simulation.trace.lines is not None
    return [line.strip() for line in simulation.trace.lines if any(word in line for word in words)]


def lose_turns(*tickets: int) -> Callable[[SimulatedCluster], None]:
    """The messages of these turns never arrive."""

    def script(cluster: SimulatedCluster) -> None:
        cluster.deliver = lambda event: (
            None if isinstance(event, Trained) and event.ticket in tickets else event
        )

    return script


def test_workers_that_do_not_come_end_the_run_after_the_start_limit() -> None:
    simulation = run(Plan(10, 10, workers=3), joins=[0, 1], limits=Limits(start_s=30.0))
    outcome = simulation.outcome
    assert (outcome.complete, outcome.version, outcome.seconds) == (False, 0, 0.0)
    reason = too_few_joined(2, 3, 30.0)
    assert outcome.reason == reason
    assert lines(simulation, "finish") == [f"30.0000  < finish, incomplete: {reason}"]


def test_a_worker_that_comes_in_time_is_waited_for() -> None:
    simulation = run(
        Plan(10, 4, workers=2),
        joins=[0],
        script=lambda cluster: cluster.join(1, 29.0),
        limits=Limits(start_s=30.0),
    )
    assert simulation.outcome.complete
    assert lines(simulation, "ticket 1 from") == [
        "29.0000  < train worker 0.1 ticket 1 from center 0, 1 steps at iteration 0"
    ]


def test_losing_the_last_worker_ends_the_run_after_the_join_limit() -> None:
    simulation = run(
        Plan(10, 100, workers=1),
        script=lambda cluster: cluster.die(0, 0.25),
        limits=Limits(join_s=8.0),
    )
    assert simulation.outcome.reason == too_few_left(0, 1, 8.0)
    assert lines(simulation, "finish")[0].startswith("8.2500")


def test_a_worker_that_returns_within_the_join_limit_carries_the_run_to_its_end() -> None:
    def script(cluster: SimulatedCluster) -> None:
        cluster.die(0, 0.25)
        cluster.join(0, 8.2)

    simulation = run(Plan(10, 100, workers=1), script=script, limits=Limits(join_s=8.0))
    assert simulation.outcome.complete


def test_a_first_turn_that_does_not_end_is_given_the_turn_limit() -> None:
    simulation = run(
        Plan(10, 6, workers=2),
        strategy=Synchronous(AverageDeltas()),
        script=lose_turns(2),
        limits=Limits(turn_s=40.0),
    )
    assert simulation.outcome.complete
    assert lines(simulation, "leaves", "version 1,") == [
        f"40.0000  > worker 1.1 leaves: {turn_overdue(40.0)}",
        "40.0000  < merge 0#1 (staleness 0) x 1 -> version 1, iteration 1",
    ]


def test_later_turns_are_given_three_times_the_slow_ones_and_a_heartbeat() -> None:
    """Turns take 2 s and 2 ms of latency; ticket 20 is issued when 18 are known."""
    simulation = run(
        Plan(10, 40, workers=2), world=World(step_s=2.0, jitter=0.0), script=lose_turns(20)
    )
    issued = float(lines(simulation, "ticket 20 from")[0].split()[0])
    gone = float(lines(simulation, "leaves")[0].split()[0])
    assert gone - issued == pytest.approx(3 * 2.002 + HEARTBEAT_S, abs=1e-3)
    assert simulation.outcome.complete


def test_an_evicted_worker_is_evicted_by_the_cluster_too() -> None:
    simulation = run(
        Plan(10, 6, workers=2), script=lose_turns(2), limits=Limits(turn_s=40.0), keep_trace=False
    )
    assert simulation.cluster.present == {0}


def test_the_last_version_is_the_one_that_is_tested() -> None:
    simulation = run(Plan(10, 7, workers=1, test_interval=3))
    assert simulation.outcome.metrics == {"version": 7.0}
    assert [line.split("test ")[1] for line in lines(simulation, "< test")] == [
        "version 3, iteration 3",
        "version 6, iteration 6",
    ]


def test_a_tester_that_does_not_answer_is_not_waited_for_longer_than_its_limit() -> None:
    def silent(cluster: SimulatedCluster) -> None:
        cluster.deliver = lambda event: None if isinstance(event, messages.Tested) else event

    simulation = run(Plan(10, 7, workers=1), script=silent, limits=Limits(test_s=50.0))
    outcome = simulation.outcome
    assert (outcome.complete, outcome.version, outcome.metrics) == (True, 7, {})
    assert outcome.test_problem == silent_tester(50.0)
    assert lines(simulation, "tested") == [
        f"{50 + 7 * 0.102:.4f}  > version 7 tested: {silent_tester(50.0)}"
    ]


def test_tests_queue_up_and_one_too_many_is_left_out_and_told() -> None:
    """A test lasts 0.09 s from when it is asked for, a turn 0.02 s: four wait at a time, the fifth is told."""
    asked: list[int] = []

    def slow(cluster: SimulatedCluster) -> None:
        def later(event: Event) -> Event | None:
            if not isinstance(event, messages.Tested):
                return event
            asked.append(event.version)
            cluster.at(cluster.now + 0.07, lambda: event)  # after the 0.02 s of a step
            return None

        cluster.deliver = later

    world = World(step_s=0.02, latency_s=0.0, jitter=0.0)
    simulation = run(Plan(10, 12, workers=1, test_interval=1), world=world, script=slow)
    assert asked == [1, 2, 3, 4, 6, 7, 8, 9, 11, 12]
    left_out = [line.split("  > ")[1] for line in lines(simulation, "skipped")]
    problem = f"tested: {busy_tester(4)}"
    assert left_out == [f"version 5 {problem}", f"version 10 {problem}"]


@pytest.mark.parametrize(("failures", "metrics"), [(0, 1.0), (1, 1.0), (2, 1.0), (3, None)])
def test_a_failed_test_of_the_last_version_is_made_again_whatever_became_of_others(
    failures: int, metrics: float | None
) -> None:
    """Version 6 is still being tested when the run ends with version 7; then the store loses both."""
    left = {6: 1, 7: failures}

    def script(cluster: SimulatedCluster) -> None:
        def fail(event: Event) -> Event | None:
            if not isinstance(event, messages.Tested):
                return event
            problem = "it is lost" if left[event.version] else ""
            left[event.version] -= bool(problem)
            answer = messages.Tested(event.version, {} if problem else {"accuracy": 1.0}, problem)
            cluster.at(cluster.now + 0.2, lambda: answer)
            return None

        cluster.deliver = fail

    outcome = run(Plan(10, 7, workers=1, test_interval=6), script=script).outcome
    assert outcome.metrics.get("accuracy") == metrics
    assert outcome.test_problem == ("" if metrics else "it is lost")


def test_a_run_that_trained_nothing_tests_nothing() -> None:
    simulation = run(Plan(10, 12, workers=2), joins=[0], limits=Limits(start_s=5.0))
    outcome = simulation.outcome
    assert (outcome.complete, outcome.samples, outcome.metrics) == (False, 0, {})
    assert outcome.reason == too_few_joined(1, 2, 5.0)
    assert lines(simulation, "tested") == []


def test_snapshots_are_written_when_they_are_due() -> None:
    class Log:
        def __init__(self) -> None:
            self.snapshots: list[Action] = []

        def saw(self, event: Event, now: float) -> None:
            assert isinstance(event, Event)

        def did(self, action: Action, now: float) -> None:
            if isinstance(action, Snapshot):
                self.snapshots.append(action)

    log = Log()
    run(Plan(10, 9, workers=1, snapshot=4), observer=lambda trace: log)
    assert log.snapshots == [Snapshot(4, 4), Snapshot(8, 8)]


def test_the_seconds_of_a_run_are_from_the_first_turn_to_the_last_merge() -> None:
    simulation = run(Plan(10, 5, workers=1), joins=[], script=lambda cluster: cluster.join(0, 20.0))
    assert simulation.outcome.seconds == pytest.approx(5 * 0.102)


SATURATED = 40  # workers: more than are decided together, so that some always wait


def test_a_hung_worker_is_evicted_in_time_by_a_master_that_is_never_idle() -> None:
    """Forty workers have a result every 0.1 s; the master needs 0.02 s for each, so its queue is never empty."""
    world = World(jitter=0.0, decide_s=0.02)
    simulation = run(Plan(10, 2500, workers=SATURATED), world=world, script=lose_turns(500))
    issued = float(lines(simulation, "ticket 500 from")[0].split()[0])
    (gone,) = lines(simulation, "leaves")
    queue = SATURATED * world.decide_s
    slowest = world.step_s + 2 * queue  # its result, too, waits for the master
    assert float(gone.split()[0]) - issued <= 3 * slowest + HEARTBEAT_S + queue
    assert simulation.outcome.complete


def test_a_test_that_gets_no_answer_is_given_up_by_a_master_that_is_never_idle() -> None:
    def silent(cluster: SimulatedCluster) -> None:
        cluster.deliver = lambda event: None if isinstance(event, messages.Tested) else event

    simulation = run(
        Plan(10, 2000, workers=SATURATED, test_interval=500),
        world=World(jitter=0.0, decide_s=0.02),
        script=silent,
        limits=Limits(test_s=5.0),
    )
    asked = float(lines(simulation, "< test version")[0].split()[0])
    assert float(lines(simulation, "tested")[0].split()[0]) - asked < 5.0 + 2 * SATURATED * 0.02


def test_a_result_that_came_in_time_counts_however_long_it_waited_for_the_master() -> None:
    """The first turns have 2 s; the master, which needs 0.1 s for each event, hears of the last after 4 s."""
    world = World(jitter=0.0, decide_s=0.1)
    simulation = run(Plan(10, 200, workers=SATURATED), world=world, limits=Limits(turn_s=2.0))
    assert simulation.outcome.complete
    assert lines(simulation, "leaves") == []
