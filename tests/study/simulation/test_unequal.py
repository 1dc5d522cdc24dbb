"""Workers of unequal speeds in the simulator: the batch is divided by speed, seldom, and the model stays the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from speedo.engines.quadratic import QuadraticEngine, _batch_offset
from speedo.master.plan import Plan
from speedo.master.speed_division import Speed, SpeedDivision, divided
from speedo.messages import Divided, Merge
from speedo.sgd_modes.rules import AverageDeltas
from speedo.sgd_modes.synchronous import Synchronous
from tests.support.quick import tried
from tests.support.schedules import make_schedule
from tests.support.schedules import run as run_schedule
from tests.support.seen import Seen
from tests.support.simulation.simulate import Simulation, simulate
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.world import World

BATCH, STEP_S = 120, 0.2


class Timed(Seen):
    """Also keeps when each merge was, and how many samples were merged by then."""

    def __init__(self) -> None:
        super().__init__()
        self.merged: list[tuple[float, int]] = []

    def did(self, action: object, now: float) -> None:
        super().did(action, now)  # type: ignore[arg-type]
        if isinstance(action, Merge):
            self.merged.append((now, action.samples_seen))

    def rate(self, begin: float, end: float) -> float:
        """Samples/s between these times."""
        inside = [(now, samples) for now, samples in self.merged if begin <= now <= end]
        (first, fewer), (last, more) = inside[0], inside[-1]
        return (more - fewer) / (last - first)


def run(
    speeds: Callable[[int, float], float],
    workers: int,
    *,
    iterations: int,
    teams: bool = True,
    even: bool = False,
    seed: int = 0,
    jitter: float = 0.1,
    kind: type[QuadraticEngine] = QuadraticEngine,
    script: Callable[[SimulatedCluster], None] = lambda cluster: None,
) -> tuple[Simulation, Timed]:
    """`speeds` are those of a worker at a time; at 1.0 its equal share takes `STEP_S`."""
    seen, clusters = Timed(), list[SimulatedCluster]()

    def begin(cluster: SimulatedCluster) -> None:
        clusters.append(cluster)
        script(cluster)

    found = simulate(
        Synchronous(AverageDeltas()),
        Plan(BATCH, iterations, workers, teams=teams, stretch_s=0.5),
        world=World(
            step_s=STEP_S,
            jitter=jitter,
            slowness=lambda worker: 1 / speeds(worker, clusters[0].now if clusters else 0.0),
        ),
        seed=seed,
        samples_per_step=BATCH // workers,
        momentum=0.5,
        kind=kind,
        observer=seen.follow,
        places=lambda worker: "host",
        script=begin,
        division=None if even else SpeedDivision(BATCH, workers=workers),
    )
    return found, seen


def best_rate(speeds: Mapping[int, float]) -> float:
    """Samples/s of the best division into whole records."""
    own = {one: Speed(speed * BATCH / len(speeds) / STEP_S) for one, speed in speeds.items()}
    shares = divided(BATCH, own)
    return BATCH / max(own[one].takes(shares[one]) for one in shares)


def is_enough(rate: float, speeds: Mapping[int, float]) -> bool:
    """Within 5 % of the best, or within a tenth where shares are equal: they stay so for less; and the noise."""
    equal = BATCH * min(speeds.values()) / STEP_S
    best = best_rate(speeds)
    return rate >= (0.94 if equal < 0.88 * best else 0.87) * best


@pytest.mark.parametrize("seed", range(tried(10)))
def test_after_a_minute_the_throughput_is_within_5_percent_of_the_best(seed: int) -> None:
    chance = random.Random(seed)
    workers = chance.choice((2, 3, 4, 5, 6))
    speeds = {one: chance.choice((0.1, 1.0, chance.uniform(0.1, 1.0))) for one in range(workers)}
    _, seen = run(
        lambda worker, now: speeds[worker], workers, iterations=int(120 * best_rate(speeds) / BATCH),
        teams=chance.random() < 0.5, seed=seed, jitter=0.02,
    )  # fmt: skip
    assert is_enough(seen.rate(60.0, 1e9), speeds), speeds
    assert len(seen.all(Divided)) <= 3


@pytest.mark.parametrize("seed", range(tried(5)))
def test_speeds_that_change_for_good_are_followed_and_changes_stay_few(seed: int) -> None:
    chance = random.Random(seed)
    workers, turn = chance.choice((2, 3, 4)), 80.0
    before, after = (
        {one: chance.choice((0.1, 0.3, 1.0)) for one in range(workers)} for _ in range(2)
    )
    most = max(best_rate(before), best_rate(after))
    _, seen = run(
        lambda worker, now: (before if now < turn else after)[worker],
        workers, iterations=int(260 * most / BATCH), seed=seed, jitter=0.02,
    )  # fmt: skip
    assert is_enough(seen.rate(50.0, turn), before), before
    assert is_enough(seen.rate(190.0, 250.0), after), after
    assert len(seen.all(Divided)) <= 6


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("teams", [True, False])
def test_workers_of_equal_speed_keep_equal_shares_and_their_bits(workers: int, teams: bool) -> None:
    for seed in range(1):
        by_speed, seen = run(
            lambda worker, now: 1.0, workers, iterations=2500, teams=teams, seed=seed
        )
        even, _ = run(
            lambda worker, now: 1.0, workers, iterations=2500, teams=teams, seed=seed, even=True
        )
        assert seen.all(Divided) == []
        assert by_speed.center.vector.tobytes() == even.center.vector.tobytes()


def test_a_worker_that_is_slow_for_a_moment_changes_nothing() -> None:
    """As while a test computes beside it."""
    _, seen = run(
        lambda worker, now: 0.3 if worker == 1 and 20.0 < now < 22.5 else 1.0, 4, iterations=300
    )
    assert seen.all(Divided) == []


@pytest.mark.slow
def test_speeds_that_flap_change_the_division_ever_more_seldom() -> None:
    def flapping(worker: int, now: float) -> float:
        return 0.1 if worker == int(now / 20) % 4 else 1.0

    found, seen = run(flapping, 4, iterations=3000)
    seconds = found.outcome.seconds
    assert len(seen.all(Divided)) <= 6 + seconds / 120


# ---------------------------------------------------------------- the model


class InBatches(QuadraticEngine):
    """Reads its part of each batch of the whole, which `parts` says: it begins behind those of the lower ranks."""

    parts: ClassVar[dict[int, int]] = {}

    def set_iteration(self, iteration: int) -> None:
        self._now = iteration

    def _take_offset(self) -> float:
        before = sum(size for rank, size in self.parts.items() if rank < self._rank)
        start = self._now * sum(self.parts.values()) + before
        mean, spread = _batch_offset(*self._problem, start % 240, self.parts[self._rank], 1)
        self._difference -= mean
        return spread


@pytest.mark.parametrize(("teams", "slow"), [(True, 0.1), (True, 0.01), (False, 0.1)])
def test_the_model_is_that_of_the_undivided_batch(teams: bool, slow: float) -> None:
    """Sums are weighted by samples, and the solver's history goes on, also where the batch is divided anew."""

    def follow(cluster: SimulatedCluster) -> None:
        InBatches.parts = dict.fromkeys(range(4), BATCH // 4)
        divide = cluster.shares.divide

        def watched(action: Divided) -> None:
            divide(action)
            InBatches.parts = dict(cluster.shares.shares)

        cluster.shares.divide = watched  # type: ignore[method-assign]

    speeds = {0: 1.0, 1: slow, 2: 0.5, 3: 0.8}
    found, seen = run(
        lambda worker, now: speeds[worker] if now < 190.0 else 1.0, 4, iterations=700, teams=teams,
        kind=InBatches, script=follow,
    )  # fmt: skip
    divided = [one.records[1] for one in seen.all(Divided)]
    assert min(divided) in ((0,) if teams and slow < 0.1 else range(1, 10))
    assert divided[-1] > BATCH / 8, "it has come back"
    InBatches.parts = {0: BATCH}
    whole, _ = run(lambda worker, now: 1.0, 1, iterations=700, kind=InBatches, even=True)
    np.testing.assert_allclose(found.center.vector, whole.center.vector, rtol=2e-5, atol=1e-6)


def test_each_merge_has_the_samples_of_one_batch_after_a_division_too() -> None:
    _, seen = run(lambda worker, now: (1.0, 0.05)[worker], 2, iterations=200, teams=False)
    assert seen.all(Divided)
    assert {sum(part.samples for part in one.parts) for one in seen.all(Merge)} == {BATCH}


@pytest.mark.parametrize("seed", range(tried(30)))
def test_no_fault_breaks_a_run_that_divides_by_speed(seed: int) -> None:
    chance = random.Random(seed)
    schedule = make_schedule("sync", chance)
    speeds = tuple(chance.choice((1.0, 1.0, 0.5, 4.0, 100.0)) for _ in schedule.speeds)
    schedule = replace(schedule, speeds=speeds)
    records, workers = schedule.share * schedule.plan.workers, schedule.plan.workers
    run_schedule(schedule, division=SpeedDivision(records, look_s=0.2, workers=workers))


@pytest.mark.parametrize("seed", range(tried(1)))
def test_a_worker_whose_single_record_holds_up_the_others_rests_until_it_is_faster(
    seed: int,
) -> None:
    """Its part of each batch is the others' meanwhile, so each step still has one batch, and the model is the same."""

    def speed(worker: int, now: float) -> float:
        return 0.03 if worker == 2 and now < 200.0 else 1.0

    _, seen = run(speed, 10, iterations=1500, seed=seed)
    divisions = [dict(zip(one.workers, one.records, strict=True)) for one in seen.all(Divided)]
    assert any(one[2] == 0 for one in divisions), divisions
    assert divisions[-1][2] >= 0.9 * BATCH / 10, divisions
    assert {sum(one.values()) for one in divisions} == {BATCH}
    assert {sum(part.samples for part in one.parts) % BATCH for one in seen.all(Merge)} == {0}
    assert seen.rate(120.0, 190.0) > 0.85 * 9 / 10 * BATCH / STEP_S
    assert len(divisions) < 12


def test_who_rests_trains_again_once_nobody_else_is_there() -> None:
    found, seen = run(
        lambda worker, now: (1.0, 0.005)[worker], 2, iterations=350, script=lambda cluster: cluster.die(0, 320.0)
    )  # fmt: skip
    assert found.outcome.complete
    assert [one.records for one in seen.all(Divided)] == [(BATCH, 0), (BATCH // 2, BATCH // 2)]
