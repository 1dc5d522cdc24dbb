"""`--data-share once` in random runs with deaths, joins, losses and repetitions: each record exactly once an epoch."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from speedo.errors import TrainingStopped
from speedo.master.driver import Limits
from speedo.master.lease_book import LeaseBook
from speedo.master.observers import Observer, Observers
from speedo.master.plan import Plan
from speedo.master.turn_records import TurnRecords
from speedo.messages import Action, Event, Joined, Left
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from speedo.sgd_modes.rules import AverageDeltas
from speedo.sgd_modes.synchronous import Synchronous
from tests.support.every_mode import options_of
from tests.support.quick import tried
from tests.support.record_counts import RecordCounts
from tests.support.schedules import MODES, make_schedule, run
from tests.support.simulation.simulate import simulate
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.world import Faults, World

RECORDS = 37


@pytest.mark.parametrize("mode", MODES)
def test_each_record_is_trained_once_an_epoch_in_random_runs(mode: str) -> None:
    whole = 0
    runs = tried(60)
    for seed in range(runs):
        schedule = make_schedule(mode, random.Random(f"records {mode} {seed}"))
        schedule = replace(schedule, plan=replace(schedule.plan, once=True))
        samples, counts = schedule.plan.samples, RecordCounts()
        records = TurnRecords(LeaseBook(0, RECORDS), samples)
        checker = run(schedule, trace=counts, records=records)  # type: ignore[arg-type]
        assert counts.twice() == 0, seed
        missing = counts.never(RECORDS, samples)
        assert missing == records.missing, seed
        if checker.finish is not None and checker.finish.complete:
            assert missing == 0, seed
            whole += 1
    assert whole > 0.66 * runs


class Comings(Counter[str]):
    """How many workers came and went."""

    def saw(self, event: Event, now: float) -> None:
        if isinstance(event, (Joined, Left)):
            self[type(event).__name__] += 1

    def did(self, action: Action, now: float) -> None:
        pass


@pytest.mark.parametrize("seed", range(tried(3)))
@pytest.mark.parametrize("mode", [*MODES, "team", "teams of two hosts", "team over two hosts"])
def test_three_epochs_with_100_joins_leaves_and_kills(mode: str, seed: int) -> None:
    """From the very first record to the last one of the third epoch."""
    records, batch, workers, chance = 960, 4, 4, random.Random(f"{mode} {seed}")
    counts, comings, notes = RecordCounts(), Comings(), list[str]()
    book = TurnRecords(LeaseBook(0, records), 3 * records, notes.append)
    teams = mode.startswith("team")
    if teams:
        strategy = make_strategy(make_config(options_of("sync", 0)), workers * batch)
        strategy = Synchronous(AverageDeltas(), 1)
    else:
        strategy = make_strategy(make_config(options_of(mode, 3 * records // batch)), batch)
    in_turn = 0.1 if teams else 0.06
    faults = Faults(
        die=in_turn, lose=0.01, repeat=0.02, late=0.02, leave=in_turn, poison=0.005, fail=0.01,
        notice_s=0.2, return_s=0.3,
    )  # fmt: skip

    def script(cluster: SimulatedCluster) -> None:
        for _ in range(60 if teams else 40):
            worker, when = chance.randrange(workers), 10 * chance.random()
            cluster.die(worker, when)
            cluster.join(worker, when + chance.random())

    def observed(trace: Observer) -> Observer:
        return Observers(counts, comings, trace)

    try:
        done = simulate(
            strategy,
            Plan(
                batch * workers if teams else batch,
                3 * records // batch // (workers if teams else 1),
                workers,
                teams=teams,
                over_hosts="over" in mode,
                stretch_s=0.5,
                once=True,
            ),
            world=World(step_s=0.05, faults=faults, jitter=0.4),
            seed=seed,
            script=script,
            samples_per_step=batch,
            places=(lambda worker: f"host {worker % 2 if mode != 'team' else 0}")
            if teams
            else None,
            observer=observed,
            limits=Limits(start_s=20.0, join_s=15.0, turn_s=3.0),
            records=book,
        )
    except TrainingStopped as stopped:  # not what this is about
        pytest.fail(str(stopped))
    assert done.outcome.complete
    assert sum(comings.values()) > 100
    assert counts.twice() == 0
    assert counts.never(records, 3 * records) == 0
    assert not notes
    assert book.again > 0
    assert counts.untold or mode not in ("team", "team over two hosts")
