"""Rows 15, 16 and 19: members that come and go all the time, at awkward moments, and at a phase switch."""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path

import pytest

from speedo.master.plan import Plan
from speedo.messages import Action, Event, Merge
from tests.faults.rows import MODES, Finding, row
from tests.faults.running import HANG_S, OVERLAP, OVERLAPPING, Run
from tests.support.commands import Commands
from tests.support.sabotaged_net import BATCH, order
from tests.support.schedules import Schedule
from tests.support.schedules import run as simulate
from tests.support.simulation.world import Faults

real = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
CHANGES = 1000
PHASES = ("--phase", "async:40", "--phase", "sync:40,local_steps=1")


class Losses:
    """An observer that keeps the losses of what was merged."""

    def __init__(self) -> None:
        self.merged: list[float] = []

    def saw(self, event: Event, now: float) -> None:
        pass

    def did(self, action: Action, now: float) -> None:
        if isinstance(action, Merge):
            self.merged += [part.loss for part in action.parts]


def losses(mode: str, changes: int) -> list[float]:
    """Of a simulated run in which somebody joins or dies every 0.05 s; a turn takes 0.1 s. Promises are checked."""
    chance = random.Random(f"{mode} {changes}")
    script = tuple(
        (
            round(1.0 + 0.05 * step, 2),
            chance.choice(("join", "die", "replace")),
            chance.randrange(6),
        )
        for step in range(changes)
    )
    seen = Losses()
    checker = simulate(
        Schedule(
            {"mode": mode, "workers": 4},
            Plan(6, max_iter=4000, workers=4),
            share=6,
            speeds=(1.0,),
            latency_s=0.001,
            jitter=0.1,
            faults=Faults(return_s=0.3 if changes else None),
            script=script,
            momentum=0.0,
            seed=3,
        ),
        seen,  # type: ignore[arg-type]
    )
    assert checker.counts["merged"] >= 4000
    return seen.merged


@pytest.mark.slow
@row(15, "1,000 joins and deaths, one every half turn (simulator)", usual="sync")
def test_a_thousand_joins_and_deaths_break_nothing_and_cost_no_loss(
    mode: str, finding: Finding
) -> None:
    calm, troubled = losses(mode, 0), losses(mode, CHANGES)
    after = [statistics.mean(one[-500:]) for one in (calm, troubled)]
    assert after[1] < 1.05 * after[0]
    assert after[0] < 0.05 * calm[0]  # both have learned
    finding.note = f"loss {after[1] / after[0]:.3f} times that of the calm run"


def scale(run: Run, workers: int) -> None:
    said = run.speedo.start("scale", str(workers))
    _, errors = said.communicate(timeout=HANG_S)
    assert said.returncode == 0, errors


@row(15, "shards redistributed under turns that overlap", OVERLAPPING, "async")
def test_workers_that_take_other_shards_between_turns_that_overlap(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    options = ("--workers", "3", "--restarts", "0", "--data-share", "reshard_after=1")
    run = Run(speedo, problem, mode, *OVERLAP, *options)
    run.has_begun()
    run.workers()[1].kill()
    finding.recovered(run.recovery(time.monotonic()))
    run.wait_for(lambda: run.merged(0, 2) or run.merged(2, 2))
    run.goes_on(20)
    run.stop_and_check()


test_workers_that_take_other_shards_between_turns_that_overlap.pytestmark += real  # type: ignore[attr-defined]


@row(15, "`speedo scale` up and down, eight times")
def test_workers_come_and_go_by_command(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    run = Run(speedo, problem, mode, "--data-share", "reshard_after=1")
    run.has_begun()
    chance = random.Random(mode)
    present, changes = 2, 0
    while changes < 8:
        wanted = chance.choice([n for n in (1, 2, 3) if n != present])
        scale(run, wanted)
        since = time.monotonic()
        finding.recovered(run.recovery(since))
        run.wait_for(lambda wanted=wanted: len(run.workers()) == wanted)
        present, changes = wanted, changes + 1
    run.goes_on(20)
    lines = run.stop_and_check()
    finding.note = f"{sum(line['event'] == 'joined' for line in lines)} joins"
    assert {line["cause"].partition(":")[0] for line in lines if line["event"] == "left"} <= {
        "fewer workers are wanted",
        "takes a new shard",
    }


test_workers_come_and_go_by_command.pytestmark += real  # type: ignore[attr-defined]


@row(16, "join in a running round or phase", (*MODES, "hybrid"), usual="partial")
def test_who_joins_trains_at_once_and_on_the_newest_center(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    """The first turn of the newcomer has seen what was merged before: it is no staler than the others'."""
    run = Run(speedo, problem, mode, *(PHASES if mode == "hybrid" else ()))
    run.has_begun()
    scale(run, 3)
    run.wait_for(lambda: run.merged(2, 1))
    joined = next(one for one in run.lines("joined") if one["worker"] == 2)
    first = run.merged(2, 1)[0]
    finding.recovered(first["time"] - joined["time"])
    between = {line["version"] for line in run.merged_after(joined) if line["time"] < first["time"]}
    finding.note = f"its first result was merged {len(between)} versions after it had joined"
    assert first["staleness"] <= 8
    run.goes_on(20)
    lines = run.stop_and_check()
    assert not [line for line in lines if line["event"] in ("left", "set-aside")]


test_who_joins_trains_at_once_and_on_the_newest_center.pytestmark += real  # type: ignore[attr-defined]


@row(19, "worker killed while a phase waits for its last results", ("hybrid",), usual="hybrid")
def test_a_kill_at_a_phase_switch_lets_the_next_phase_begin(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    """The phase async has merged its samples and waits for worker 1, which sleeps in its turn and dies there."""
    run = Run(speedo, problem, mode, *PHASES)
    run.has_begun(2)
    order(problem, "1 sleep 600")
    seen = -1
    while seen != run.version:  # worker 0 goes on until the phase has its samples, then waits
        seen = run.version
        time.sleep(2.0)
    (turn,) = [worker for slot, worker in run.workers().items() if slot == 1]
    order(problem)
    turn.kill()
    since = time.monotonic()
    finding.recovered(run.recovery(since))
    run.wait_for(lambda: run.merged(1, 2))
    run.goes_on(100)  # through several phases
    lines = run.stop_and_check()
    merged = [line for line in lines if line.get("decision") == "merged"]
    (left,) = [line for line in lines if line["event"] == "left"]
    after = [line for line in merged if line["time"] >= left["time"]]
    assert min(line["version"] for line in after) == seen + 1
    assert not [line for line in after if (line["worker"], line["incarnation"]) == (1, 1)]
    # A round of sync merges 4 + 4 records as one version, async 8 as one: both phases were there.
    sizes = {line["version"]: 0 for line in merged}
    for line in merged:
        sizes[line["version"]] += 1
    assert set(sizes.values()) == {1, 2}
    assert BATCH == 8
    finding.note = f"version {seen} was the last before the kill"


test_a_kill_at_a_phase_switch_lets_the_next_phase_begin.pytestmark += real  # type: ignore[attr-defined]
