"""Rows 21 to 23: members of a team that are killed, hang, or compute nonsense in the middle of a stretch."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from speedo.actors.death_causes import SILENT
from speedo.actors.worker_process import STOPPED
from tests.faults.rows import Finding, row
from tests.faults.running import Run, stand_still
from tests.support.commands import Commands
from tests.support.sabotaged_net import order

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
TEAM = ("--team", "host")
SUMS = 60  # of one member until it is killed: in the middle of a stretch, which is so long
LONG = ("--team", "stretch=5")


def killed(speedo: Commands, solver: Path, victim: int, finding: Finding) -> None:
    done = speedo.folder / "done"
    run = Run(
        speedo, solver, "sync", *TEAM, *LONG, "--workers", "3",
        environment={"SPEEDO_FAILPOINT": f"team-summed:{victim}@{SUMS}", "SPEEDO_FAILPOINT_DONE": str(done)},
    )  # fmt: skip
    run.wait_for(done.exists)
    since = time.monotonic()
    finding.recovered(run.recovery(since))
    run.wait_for(lambda: run.merged(victim, 2))
    finding.note = f"a team of all again after {time.monotonic() - since:.1f} s"
    lines = run.stop_and_check()
    (left,) = [line for line in lines if line["event"] == "left"]
    assert (left["worker"], left["incarnation"]) == (victim, 1)
    assert any(len(line.get("losses", ())) > 1 for line in run.merged(victim, 2))
    # What comes later is of the end, at which a stretch may be under way.
    until = lines.index(run.merged(victim, 2)[0])
    rounds = run.rounds_before_death(victim, until)
    assert 0 < rounds < SUMS
    finding.note += f"; the {rounds} rounds before stay"
    run.failed_first(f"worker {victim}", SILENT)


@row(21, "member of a team killed in a stretch", ("sync",), usual="sync")
def test_a_member_killed_in_a_stretch(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    killed(speedo, problem, 1, finding)


@row(21, "leader of a team killed in a stretch", ("sync",))
def test_the_leader_killed_in_a_stretch(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    killed(speedo, problem, 0, finding)


@row(22, "member of a team hangs (SIGSTOP)", ("sync",), usual="sync")
def test_a_member_that_hangs_is_replaced(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    run = Run(speedo, problem, "sync", *TEAM, "--workers", "3")
    run.has_begun()
    stand_still(run.workers()[1])
    since = time.monotonic()
    run.wait_for(lambda: run.lines("left"))
    finding.recovered(run.recovery(since))
    run.wait_for(lambda: run.merged(1, 2))
    finding.note = f"a team of all again after {time.monotonic() - since:.1f} s"
    lines = run.stop_and_check()
    (left,) = [line for line in lines if line["event"] == "left"]
    assert left["worker"] == 1
    assert left["cause"] == STOPPED
    run.failed_first("worker 1", STOPPED, "stopped by a signal (SIGSTOP)")


@row(23, "member of a team sends numbers that are not finite", ("sync",))
def test_a_member_that_is_not_finite_is_set_aside_alone(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    run = Run(speedo, problem, "sync", *TEAM, "--workers", "3")
    run.has_begun()
    order(problem, "2 scale nan")
    since = time.monotonic()
    run.wait_for(lambda: run.lines("set-aside"))
    finding.recovered(run.recovery(since))
    run.goes_on()
    lines = run.stop_and_check()
    assert [line["worker"] for line in lines if line["event"] == "set-aside"] == [2]
    refused = [line for line in lines if line.get("decision") == "refused"]
    own = [line["reason"] for line in refused if line["worker"] == 2]
    assert len(own) == 3
    assert all("not finite" in reason for reason in own)
    assert {line["worker"] for line in refused} == {0, 1, 2}
    assert run.merged_after(lines[lines.index(refused[-1])])
    run.failed_first("worker 2", "not finite")
