"""Runs with teams in the simulator: the model is the same as without, tests come when asked for, no fault breaks it."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest

from speedo.engines.quadratic import QuadraticEngine
from speedo.master.coordinator import Coordinator
from speedo.master.plan import Plan, rounds_of
from speedo.master.turn_book import Receive
from speedo.messages import (
    Drop,
    Evaluate,
    Joined,
    Left,
    Merge,
    Refused,
    Snapshot,
    TeamGivenUp,
    Train,
    Trained,
)
from speedo.sgd_modes.rules import AverageDeltas
from speedo.sgd_modes.synchronous import Synchronous
from tests.support.quick import tried
from tests.support.seen import Seen
from tests.support.simulation.simulate import Simulation, simulate
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.world import Faults, World

WORLD = World(step_s=0.01)
ENGINE = {"momentum", "kind"}


def plan(workers: int, **options: Any) -> Plan:
    return Plan(4 * workers, 100, workers, **{"teams": True, "stretch_s": 1.0, **options})


def run(
    workers: int = 4,
    hosts: int = 1,
    *,
    teams: bool = True,
    seed: int = 0,
    faults: Faults | None = None,
    **options: Any,
) -> tuple[Simulation, Seen]:
    seen = Seen()
    world = World(step_s=options.pop("step_s", 0.01), faults=faults or Faults())
    script = options.pop("script", None)
    found = simulate(
        Synchronous(AverageDeltas(), options.pop("local_steps", 1)),
        plan(workers, teams=teams, **{one: options[one] for one in options if one not in ENGINE}),
        world=world,
        seed=seed,
        samples_per_step=4,
        momentum=options.get("momentum", 0.5),
        kind=options.get("kind", QuadraticEngine),
        observer=seen.follow,
        places=lambda worker: f"host {worker % hosts}",
        script=script,
    )
    return found, seen


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_a_team_that_trains_alone_makes_the_same_model_to_the_bit(workers: int) -> None:
    without, _ = run(workers, teams=False)
    team, _ = run(workers)
    often, _ = run(workers, stretch_s=0.0)
    assert team.center.vector.tobytes() == without.center.vector.tobytes()
    assert often.center.vector.tobytes() == without.center.vector.tobytes()
    assert (team.outcome.iteration, often.outcome.version) == (100, 100)
    if workers > 1:
        # One round to learn its time, then 1.0 s of rounds of 10 ms
        assert team.outcome.version == 3


def test_teams_of_several_hosts_make_the_same_model() -> None:
    without, _ = run(6, teams=False)
    for hosts in (2, 3):
        team, seen = run(6, hosts)
        assert team.outcome.version == 100  # each round is reported
        np.testing.assert_allclose(team.center.vector, without.center.vector, rtol=0, atol=1e-6)
        assert {len(merge.parts) for merge in seen.all(Merge)} == {6}


def test_only_the_leader_of_each_host_sends_a_payload() -> None:
    _, seen = run(6, 2)
    for merge in seen.all(Merge):
        assert [part.summed_by for part in merge.parts] == [None, 1, 1, None, 0, 0]


def test_tests_and_snapshots_fall_on_their_iterations() -> None:
    _, seen = run(4, test_interval=7, snapshot=30)
    assert [test.iteration for test in seen.all(Evaluate)] == [*range(7, 100, 7)]
    assert [snapshot.iteration for snapshot in seen.all(Snapshot)] == [30, 60, 90]


def test_every_iteration_of_a_stretch_has_its_number() -> None:
    """Whole batches: a round of four workers is four iterations."""
    seen = Seen()
    simulate(
        Synchronous(AverageDeltas()),
        Plan(4, 100, 4, teams=True, stretch_s=1.0, test_interval=20),
        world=WORLD,
        samples_per_step=4,
        observer=seen.follow,
        places=lambda worker: "here",
    )
    turns = [one for one in seen.all(Train) if one.worker == 0]
    assert [(one.iteration, one.team.rounds, one.iteration_of(1)) for one in turns[:3]] == [
        (0, 1, 4), (4, 4, 8), (20, 5, 24),
    ]  # fmt: skip
    assert sum(one.team.rounds for one in turns) == 25


def test_a_team_over_hosts_is_one_team_that_knows_who_is_on_which_host() -> None:
    """It does several rounds in a stretch, as a team on one host."""
    seen = Seen()
    simulate(
        Synchronous(AverageDeltas()),
        Plan(16, 100, 4, teams=True, over_hosts=True, stretch_s=1.0),
        world=WORLD,
        samples_per_step=4,
        observer=seen.follow,
        places=lambda worker: "near" if worker in (0, 3) else "far",
    )
    teams = [one.team for one in seen.all(Train)]
    assert {team.workers for team in teams} == {(0, 1, 2, 3)}
    assert {team.spread for team in teams} == {((0, 3), (1, 2))}
    assert max(team.rounds for team in teams) > 10


@pytest.mark.parametrize("local_steps", [1, 2])
def test_a_stretch_of_a_part_of_the_batch_moves_the_learning_rate_all_the_same(
    local_steps: int,
) -> None:
    """Two of four workers of a divided batch are there: a local step is half of an iteration."""
    seen = Seen()
    simulate(
        Synchronous(AverageDeltas(), local_steps=local_steps),
        Plan(16, 100, 2, teams=True, stretch_s=1.0, test_interval=20),
        world=WORLD,
        samples_per_step=4,
        observer=seen.follow,
        places=lambda worker: "here",
    )
    turns = [one for one in seen.all(Train) if one.worker == 0]
    assert max(one.team.rounds for one in turns) > 10
    asked = [one.iteration_of(step) for one in turns for step in range(one.all_steps)]
    assert asked == [step // 2 for step in range(200)]
    assert [test.iteration for test in seen.all(Evaluate)] == [20, 40, 60, 80]


@pytest.mark.parametrize(
    ("iteration", "left", "round_s", "expected"),
    [
        (0, 8000, 0.0, 1),  # nothing measured yet
        (0, 8000, 0.01, 10),  # up to the test at 20, two iterations a round
        (10, 8000, 0.01, 5),
        (0, 8000, 0.2, 2),  # 0.5 s
        (0, 8000, 3.0, 1),
        (0, 24, 0.01, 3),
        (0, 9, 0.01, 1),
    ],
)
def test_how_many_rounds_a_stretch_has(
    iteration: int, left: int, round_s: float, expected: int
) -> None:
    plan = Plan(4, 1000, 2, test_interval=20, stretch_s=0.5)
    assert rounds_of(plan, 4 * iteration, left, 8, round_s) == expected


def test_rounds_of_a_team_that_misses_a_member_are_no_fewer_in_a_stretch() -> None:
    """Three of four train 48 records of a batch of 64: rounds are parts of iterations, and end with the test."""
    plan = Plan(64, 1000, 4, test_interval=20, stretch_s=0.5)
    assert rounds_of(plan, 0, 10_000, 48, 0.02) == 25
    assert rounds_of(plan, 0, 10_000, 48, 0.001) == 27  # 1,280 samples are 26.7 rounds
    assert rounds_of(plan, 27 * 48, 10_000, 48, 0.001) == 27  # from 1,296 to 2,560: 26.3
    assert rounds_of(plan, 19 * 64 + 63, 10_000, 48, 0.001) == 1
    assert rounds_of(plan, 0, 10_000, 96, 0.001) == 14
    assert rounds_of(plan, 0, 100, 48, 0.001) == 2
    assert rounds_of(plan, 0, 10_000, 48, 0.001, change=3) == 4


def test_a_worker_that_joins_later_sums_with_the_others_from_the_next_turn() -> None:
    def joins(cluster: SimulatedCluster) -> None:
        cluster.join(4, 0.3)

    found, seen = run(4, script=joins)
    teams = [one.team.workers for one in seen.all(Train)]
    assert teams[0] == (0, 1, 2, 3)
    assert teams[-1] == (0, 1, 2, 3, 4)
    formed = {one.team.workers: one.team.formed for one in seen.all(Train)}
    assert formed[0, 1, 2, 3] != formed[0, 1, 2, 3, 4]
    assert found.outcome.complete


def test_who_dies_in_a_stretch_costs_that_stretch_and_no_more() -> None:
    def dies(cluster: SimulatedCluster) -> None:
        cluster.die(2, 0.3)

    found, seen = run(4, script=dies)
    assert found.outcome.complete
    dropped = seen.all(Drop)
    assert {drop.worker for drop in dropped} == {0, 1, 3}
    assert {drop.decision for drop in dropped} <= {"discarded", "refused"}
    assert all("worker 2" in drop.reason for drop in dropped)
    left = [one.team.rounds for one in seen.all(Train) if one.team.workers == (0, 1, 3)]
    assert max(left) > 10, "three of four report no more often"


def test_the_last_one_of_a_team_reports_no_more_often() -> None:
    def die(cluster: SimulatedCluster) -> None:
        for worker in (1, 2, 3):
            cluster.die(worker, 0.3)

    found, seen = run(4, script=die)
    assert found.outcome.complete
    alone = [one for one in seen.all(Train) if one.team.workers == (0,)]
    assert max(one.team.rounds for one in alone) > 10
    assert sum(part.samples for merge in seen.all(Merge) for part in merge.parts) == 1600


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_who_is_told_to_leave_ends_the_stretch_of_all_after_the_same_round(hosts: int) -> None:
    """They agree every 2 s, here some 20 rounds; the result is merged, and the others continue without it."""

    def told(cluster: SimulatedCluster) -> None:
        cluster.at(0.5, lambda: cluster.notice(2))

    found, seen = run(4, hosts, over_hosts=True, step_s=0.1, stretch_s=30.0, script=told)
    assert found.outcome.complete
    assert not seen.all(Drop)
    first, second = seen.all(Merge)[:2]
    assert [part.samples for part in first.parts] == [4] * 4  # to learn the time of a round
    rounds = second.parts[0].steps
    assert [(part.samples, part.steps) for part in second.parts] == [(4 * rounds, rounds)] * 4
    assert 15 < rounds < 25
    left = [one for one in seen.events if isinstance(one, Left)]
    assert [(one.worker, one.cause) for one in left] == [(2, "told to leave")]
    after = [one for one in seen.all(Train) if one.version >= second.version]
    assert {one.team.workers for one in after} == {(0, 1, 3)}


class SameAgain(QuadraticEngine):
    """An iteration that is trained once more reads the same records."""

    def set_iteration(self, iteration: int) -> None:
        super().set_iteration(iteration)
        self._records_read = iteration * self.samples_per_step


@pytest.mark.parametrize("seed", range(tried(8)))
@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_faults_of_a_team_over_hosts_change_no_bit_of_the_model(hosts: int, seed: int) -> None:
    """Where all train or none, each stretch that is lost is trained once more."""
    options: dict[str, Any] = {"over_hosts": True, "stretch_s": 0.1, "most_stretch_s": 0.1}
    options |= {"momentum": 0.0, "kind": SameAgain}
    calm, _ = run(5, hosts, seed=seed, **options)
    faults = Faults(die=0.05, poison=0.03, lose=0.02, repeat=0.05, return_s=2.0)
    found, seen = run(5, hosts, seed=seed, faults=faults, min_workers=5, **options)
    assert found.outcome.complete, found.outcome.reason
    assert seen.all(Drop)
    assert found.center.vector.tobytes() == calm.center.vector.tobytes()


@pytest.mark.parametrize("seed", range(tried(8)))
@pytest.mark.parametrize("over_hosts", [False, True])
@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_runs_with_faults_end_with_all_their_work_and_every_result_on_record(
    hosts: int, over_hosts: bool, seed: int
) -> None:
    faults = Faults(die=0.04, poison=0.03, lose=0.02, repeat=0.05, return_s=2.0)

    def told(cluster: SimulatedCluster) -> None:
        for worker in range(seed):
            cluster.at(0.3 * worker, partial(cluster.notice, worker % 5))

    options: dict[str, Any] = {"test_interval": 20, "over_hosts": over_hosts, "script": told}
    found, seen = run(5, hosts, seed=seed, faults=faults, **options)
    outcome = found.outcome
    assert outcome.complete, outcome.reason
    assert np.isfinite(found.center.vector).all()
    merges = seen.all(Merge)
    assert [merge.version for merge in merges] == [*range(1, outcome.version + 1)]
    merged = Counter(
        (part.worker, part.incarnation, part.ticket) for merge in merges for part in merge.parts
    )
    assert max(merged.values()) == 1
    assert sum(part.samples for merge in merges for part in merge.parts) == outcome.samples
    told = Counter(
        (one.worker, one.incarnation, one.ticket)
        for one in seen.events
        if isinstance(one, Trained | Refused)
    )
    recorded = merged + Counter(
        (drop.worker, drop.incarnation, drop.ticket) for drop in seen.all(Drop)
    )
    died = {(one.worker, one.incarnation) for one in seen.events if isinstance(one, Left)}
    assert not told - recorded
    # Who died has made the rounds that the others of its stretch have made, and told nobody.
    untold = recorded - told
    assert {one[:2] for one in untold} <= died
    assert untold <= merged
    together: dict[tuple[int, int], set[int]] = {}  # tickets of a stretch, by gathering and version
    stretch_of: dict[int, tuple[int, int]] = {}
    for train in seen.all(Train):
        if train.team is not None:
            stretch_of[train.ticket] = (train.team.formed, train.version)
            together.setdefault(stretch_of[train.ticket], set()).add(train.ticket)
    for merge in merges:  # all of a team, or nobody
        tickets = {part.ticket for part in merge.parts}
        for ticket in tickets & stretch_of.keys():
            assert together[stretch_of[ticket]] <= tickets
    assert sum(isinstance(event, Joined) for event in seen.events) >= 5


def test_who_is_silent_in_a_long_stretch_is_given_up_soon_after_the_others_have_noticed() -> None:
    """Stretches of 30 rounds of a second: not after three times as long."""

    def silent(cluster: SimulatedCluster) -> None:
        cluster.at(40.0, lambda: cluster.forget(2) and None)

    found, seen = run(4, 2, script=silent, stretch_s=30.0, over_hosts=True, step_s=1.0)
    assert found.outcome.complete
    (line,) = [line for line in found.trace.text().splitlines() if "> worker 2.1 leaves" in line]
    assert 60.0 < float(line.split()[0]) < 80.0, line
    assert seen.all(Train)[-1].team.workers == (0, 1, 3)


@pytest.mark.parametrize("hosts", [1, 2])
def test_workers_that_can_never_meet_report_each_by_itself(hosts: int) -> None:
    """Those of several hosts try to be a team on each of them before that."""

    def fails(cluster: SimulatedCluster) -> None:
        cluster.can_meet = False

    found, seen = run(4, hosts, script=fails, over_hosts=True)
    assert found.outcome.complete
    turns = seen.all(Train)
    assert sum(one.team is not None for one in turns) == 8 * 4 * hosts
    assert turns[-1].team is None
    given_up = seen.all(TeamGivenUp)
    workers = {one.workers for one in given_up}
    assert workers == {(0, 1, 2, 3), *([(0, 2), (1, 3)] if hosts == 2 else [])}
    assert all("cannot be reached" in one.reason for one in given_up)
    assert ("let every host connect" in given_up[0].reason) == (hosts == 2)
    without, _ = run(4, teams=False)
    np.testing.assert_allclose(found.center.vector, without.center.vector, rtol=0, atol=1e-2)


@pytest.mark.parametrize(("near", "rounds"), [(3, 11), (None, 33)])
def test_a_leader_near_the_master_reports_as_often_as_it_likes_another_for_a_small_part_of_its_link(
    near: int | None, rounds: int
) -> None:
    """Of four hosts a round is 1.5 vectors, so that 33.3 rounds have room for a report at 2 %."""
    coordinator = Coordinator(
        Synchronous(AverageDeltas()), Plan(4, 10_000, 4, teams=True, over_hosts=True, stretch_s=1.0)
    )
    commands: list[Train] = []
    for worker in range(4):
        joined = Joined(worker, 1, 1, meets=f"host {worker}", near=worker == near)
        commands = [one for one in coordinator.handle(joined) if isinstance(one, Train)]
    assert commands[0].team is not None
    assert (commands[0].team.leader, commands[0].team.rounds) == (near or 0, 1)
    timings = {"compute": 0.09, "publish": 0.01}
    for one in commands:
        answer = coordinator.handle(Trained(one.worker, 1, one.ticket, 0.0, 1, timings))
    assert isinstance(answer, Receive)
    (first, *_) = [one for one in coordinator.handle(answer) if isinstance(one, Train)]
    assert first.team is not None
    assert first.team.rounds == rounds


def test_hosts_that_cannot_reach_each_other_are_a_team_each() -> None:
    def fails(cluster: SimulatedCluster) -> None:
        cluster.hosts_can_meet = False

    found, seen = run(4, 2, script=fails, over_hosts=True)
    assert found.outcome.complete
    (given_up,) = seen.all(TeamGivenUp)
    assert given_up.workers == (0, 1, 2, 3)
    turns = seen.all(Train)
    assert sum(one.team.spread != () for one in turns) == 8 * 4
    assert {one.team.workers for one in turns[8 * 4 :]} == {(0, 2), (1, 3)}
    without, _ = run(4, teams=False)
    np.testing.assert_allclose(found.center.vector, without.center.vector, rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    ("report_s", "most_s", "rounds"),
    [(0.001, 30.0, 50), (0.2, 30.0, 1000), (0.02, 30.0, 100), (1.0, 5.0, 500)],
)
def test_a_stretch_is_as_long_as_makes_its_report_a_small_part_of_it(
    report_s: float, most_s: float, rounds: int
) -> None:
    plan = Plan(4, 10_000, 2, stretch_s=0.5, most_stretch_s=most_s)
    assert rounds_of(plan, 0, 80_000, 8, 0.01, report_s) == rounds
    often = Plan(4, 10_000, 2, stretch_s=0.0)
    assert rounds_of(often, 0, 80_000, 8, 0.01, report_s) == 1
