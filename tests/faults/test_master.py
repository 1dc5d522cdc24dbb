"""Rows 3 and 4: the master dies and is started again; an old one comes back to life."""

from __future__ import annotations

import itertools
import json
import re
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.faults.rows import WITH_TORCH, Finding, Findings, row, scenario
from tests.faults.running import HANG_S, STEPS_OF_THE_END, Run, stand_still
from tests.support.commands import Commands, free_port
from tests.support.invariants import TICKETS_OF_AN_EPOCH, Line, epochs_of

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
INTERVAL_S = 0.5
MERGES = 400  # of two workers that rest 10 ms a turn: 2 s at least, and four checkpoints
RESUMED_S = 60.0
POINTS = ("master-merging", "master-merged", "master-published", "master-checkpointing")
OFTEN = ("--checkpoint-interval", str(INTERVAL_S))
TAKEN_OVER_S = 10.0  # 5 on a machine that does nothing else
BY_HAND = ("--restarts", "master_restarts=0")


def seconds_lost(lines: list[Line]) -> float:
    """The most training, in seconds of the log, that a resumption has undone."""
    longest = 0.0
    epochs = epochs_of(lines)
    for before, after in itertools.pairwise(epochs):
        merged = [line for line in before.lines if line.get("decision") == "merged"]
        kept = [line["time"] for line in merged if line["version"] <= after.version]
        longest = max(longest, merged[-1]["time"] - (kept[-1] if kept else merged[0]["time"]))
    return longest


def longest_checkpoint(lines: list[Line]) -> float:
    """Seconds from the version of a checkpoint until it was on the disk, at most."""
    longest = 0.0
    for epoch in epochs_of(lines):
        times = {line["version"]: line["time"] for line in epoch.results("merged")}
        longest = max(
            longest,
            *(
                line["time"] - times[line["version"]]
                for line in epoch.lines
                if line["event"] == "checkpoint" and line["version"] in times
            ),
            0.0,
        )
    return longest


def check_loss(lines: list[Line], finding: Finding) -> None:
    """At most one checkpoint interval is lost, and what a checkpoint takes, for it may be the one under way."""
    lost, under_way = seconds_lost(lines), longest_checkpoint(lines)
    assert lost <= 2 * (INTERVAL_S + under_way) + 1.0, (lost, under_way)
    finding.note = f"at most {lost:.1f} s of training lost, checkpoints every {INTERVAL_S} s"


def killed_at(
    speedo: Commands, solver: Path, mode: str, points: tuple[str, ...], finding: Finding
) -> None:
    """The master is killed at one point after the other, and the run resumed each time."""

    def failing(number: int) -> dict[str, str]:
        if number == len(points):
            return {}
        times = 3 if points[number] == "master-checkpointing" else MERGES
        return {"SPEEDO_FAILPOINT": f"{points[number]}@{times}"}

    run = Run(speedo, solver, mode, *OFTEN, *BY_HAND, environment=failing(0))
    for number in range(len(points)):
        said = run.ends(1)
        assert "the master's process died: killed" in said
        assert "--resume" in said
        assert "failed first: the master on " in said
        before = len(run.lines("resumed"))
        since = time.monotonic()
        run.resume(environment=failing(number + 1))
        run.wait_for(lambda before=before: len(run.lines("resumed")) > before, RESUMED_S)
        (*_, resumed) = run.lines("resumed")
        run.wait_for(lambda resumed=resumed: run.merged_after(resumed), RESUMED_S)
        finding.recovered(time.monotonic() - since)
    run.goes_on(30)
    lines = run.stop_and_check()
    assert [epoch.number for epoch in epochs_of(lines)] == list(range(len(points) + 1))
    check_loss(lines, finding)


@row(3, "master killed in a merge, then resumed", usual="sync", torch=WITH_TORCH)
def test_a_master_killed_in_a_merge_is_resumed(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    killed_at(speedo, problem, mode, POINTS[1:2], finding)


@row(
    3,
    "master killed before a merge, after it, and in a checkpoint, resumed each time",
    torch=WITH_TORCH,
)
def test_a_master_killed_at_every_point_is_resumed_each_time(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    killed_at(speedo, problem, mode, (POINTS[0], POINTS[2], POINTS[3]), finding)


@row(
    3,
    "`speedo master` killed and resumed; its workers' hosts join it by themselves",
    torch=WITH_TORCH,
)
def test_workers_join_a_resumed_master_by_themselves(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    port = str(free_port())
    run = Run(speedo, problem, mode, *OFTEN, "--port", port, command="master")
    host = speedo.start("worker", "--master", f"127.0.0.1:{port}", "--workers", "2")
    run.has_begun(50)
    run.wait_for(lambda: run.lines("checkpoint"))
    run.process.kill()
    run.process.communicate()
    since = time.monotonic()
    run.resume("--port", port, command="master")
    run.wait_for(lambda: run.lines("resumed"), RESUMED_S)
    run.wait_for(lambda: run.merged_after(run.lines("resumed")[0]), RESUMED_S)
    finding.recovered(time.monotonic() - since)
    run.goes_on(30)
    lines = run.stop_and_check()
    _, errors = host.communicate(timeout=HANG_S)
    assert host.returncode == 0, errors
    assert "is gone" in errors
    assert errors.count("joined the master") == 2
    check_loss(lines, finding)


def check_taken_over(run: Run, times: int, finding: Finding) -> None:
    """So many masters have followed each other; the workers have stayed, and what was published is not undone."""
    processes = workers_of(run.lines())
    lines = run.stop_and_check()
    assert len(epochs_of(lines)) == times + 1
    assert workers_of(lines) == processes
    are_followed(run, finding)


def are_followed(run: Run, finding: Finding) -> None:
    """The masters so far have each begun with what was published before, and with the workers that were there."""
    lines = run.lines()
    epochs = epochs_of(lines)
    assert [epoch.number for epoch in epochs] == list(range(len(epochs)))
    assert len(workers_of(lines)) == len({worker for worker, _ in workers_of(lines)})
    for before, after in itertools.pairwise(epochs):
        assert after.version >= max(line["version"] for line in before.results("merged"))
    finding.note = "no version undone, no worker's process ended"


def workers_of(lines: list[Line]) -> set[tuple[int, int]]:
    """Each worker that has joined, with its process."""
    return {(line["worker"], line["process"]) for line in lines if line["event"] == "joined"}


@row(
    3,
    "master killed at every step between the last merge and the end, another one takes over",
)
def test_another_master_takes_over_at_every_step_of_the_end(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    """The run ended at once, with status 3: "the last test failed: the tester gave no answer"."""
    environment = {
        "SPEEDO_FAILPOINT": " ".join(STEPS_OF_THE_END),
        "SPEEDO_FAILPOINT_DONE": str(speedo.folder / "done"),
    }
    run = Run(
        *(speedo, problem, mode, "--max-iter", "200"),
        *("--restarts", "master_restarts=10"),
        environment=environment,
    )
    said = run.ends(0)
    assert said.count("another master has taken over") == len(STEPS_OF_THE_END)
    result = json.loads((run.dir / "result.json").read_text())
    assert (result["complete"], result["test_problem"]) == (True, "")
    assert result["reason"] == "reached max_iter 200"
    assert result["metrics"]
    assert min(result["images_per_s"], result["bytes_pushed"], result["bytes_pulled"]) > 0
    epochs = epochs_of(run.check())
    assert [epoch.number for epoch in epochs] == list(range(len(STEPS_OF_THE_END) + 1))
    assert {epoch.version for epoch in epochs[1:]} == {result["version"]}
    finding.note = "the last version is tested and exported each time"


@row(
    3,
    "the master's process of a cluster killed: another one takes over, and its hosts follow",
    usual="sync",
)
def test_hosts_follow_another_master(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    port = str(free_port())
    run = Run(speedo, problem, mode, *OFTEN, "--port", port, "--workers", "2", command="master")
    host = speedo.start("worker", "--master", f"127.0.0.1:{port}", "--workers", "2")
    for times in (1, 2):
        run.goes_on(50)
        since = time.monotonic()
        run.the("ray::MasterActor").kill()
        run.wait_for(lambda times=times: len(run.lines("resumed")) == times, RESUMED_S)
        run.wait_for(lambda: run.merged_after(run.lines("resumed")[-1]), TAKEN_OVER_S)
        finding.recovered(time.monotonic() - since)
    run.goes_on(30)
    check_taken_over(run, 2, finding)
    _, errors = host.communicate(timeout=HANG_S)
    assert host.returncode == 0, errors
    assert errors.count("joined the master") == 1


@row(3, "the master hangs (SIGSTOP): it is ended, and another one takes over")
def test_a_master_that_hangs_is_replaced(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    run = Run(speedo, problem, mode, *OFTEN)
    run.has_begun(50)
    since = time.monotonic()
    master = run.the("ray::MasterActor")
    stand_still(master)
    run.wait_for(lambda: run.lines("resumed"), RESUMED_S)
    run.wait_for(lambda: run.merged_after(run.lines("resumed")[0]), RESUMED_S)
    finding.recovered(time.monotonic() - since)
    assert not master.is_running()
    run.goes_on(30)
    check_taken_over(run, 1, finding)


def stopped(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            stand_still(process)
        except psutil.NoSuchProcess:
            continue


AT_EVERY_POINT = "master killed at every point, another one takes over each time"
REVIVED = "an old master revives after another has taken its run over"
STOPPING = "master killed right after it took `speedo stop`: the next one stops, too"


@scenario({AT_EVERY_POINT: 3, REVIVED: 4, STOPPING: 3}, usual="async", torch=WITH_TORCH)
def test_a_run_has_one_master_after_the_other_and_never_two(
    speedo: Commands, problem: Path, mode: str, findings: Findings
) -> None:
    """Killed at each point; stopped until another command has taken over; killed when it was told to stop."""
    points = [f"{point}@{3 if point == POINTS[3] else 50}" for point in POINTS]
    environment = {
        "SPEEDO_FAILPOINT": " ".join(points),
        "SPEEDO_FAILPOINT_DONE": str(speedo.folder / "done"),
    }
    run = Run(speedo, problem, mode, *OFTEN, environment=environment)
    with findings.tries(AT_EVERY_POINT) as finding:
        run.wait_for(lambda: len(run.lines("resumed")) == len(POINTS), RESUMED_S)
        run.goes_on(30)
        are_followed(run, finding)
    with findings.tries(REVIVED) as finding:
        is_fenced(run, finding)
    with findings.tries(STOPPING) as finding:
        ends_all_the_same(run, finding)
    lines = run.check()
    epochs = epochs_of(lines)
    assert [epoch.number for epoch in epochs] == list(range(len(POINTS) + 3))
    by_command = len(POINTS) + 1
    own = {line["ticket"] // TICKETS_OF_AN_EPOCH for line in epochs[by_command].results()}
    assert own == {by_command}, "what the old master had handed out was merged"


def ends_all_the_same(run: Run, finding: Finding) -> None:
    """Its only checkpoint is that of the end, and there it is killed."""
    since = time.monotonic()
    stop = run.speedo.start("stop", str(run.dir))
    said = run.ends(3)
    finding.recovered(time.monotonic() - since)
    _, errors = stop.communicate(timeout=HANG_S)
    assert stop.returncode == 0, errors
    assert (run.speedo.folder / "stopped").exists()
    assert "another master has taken over" in said
    result = json.loads((run.dir / "result.json").read_text())
    assert result["reason"] == "stopped by `speedo stop`"
    assert len(result["master_restarts"]) == 1


def is_fenced(run: Run, finding: Finding) -> None:
    """All of it is stopped, another command takes the run over, and the old one ends when it wakes."""
    speedo, before = run.speedo, len(run.lines("resumed"))
    run.wait_for(lambda: run.lines("checkpoint"))
    old, theirs = run.process, speedo.left()
    stopped(theirs)
    why = speedo.start("status", "--why", str(run.dir))
    said, errors = why.communicate(timeout=HANG_S)
    assert why.returncode == 0, errors
    for name in ("master", "worker 0", "worker 1"):
        assert re.search(rf"^  {name}, process \d+: stopped by a signal \(SIGSTOP\)", said, re.M), (
            said
        )
    since = time.monotonic()
    environment = {
        "SPEEDO_FAILPOINT": POINTS[3],
        "SPEEDO_FAILPOINT_DONE": str(speedo.folder / "stopped"),
    }
    run.resume("--resume", "take_over=yes", "--checkpoint-interval", "0", environment=environment)
    run.wait_for(lambda: len(run.lines("resumed")) > before, RESUMED_S)
    run.wait_for(lambda: run.merged_after(run.lines("resumed")[-1]), RESUMED_S)
    finding.recovered(time.monotonic() - since)
    kept = {path: path.read_bytes() for path in run.dir.glob("*.json")}
    for process in theirs:
        with suppress(psutil.NoSuchProcess):
            process.resume()
    woken = time.monotonic()
    _, errors = old.communicate(timeout=HANG_S)
    assert old.returncode == 3, errors
    ours = f"its epoch is {before + 1}, ours {before}"
    assert f"another master has resumed this run ({ours})" in errors
    finding.note = f"the old master ended {time.monotonic() - woken:.1f} s after it woke"
    assert kept == {path: path.read_bytes() for path in run.dir.glob("*.json")}
    run.goes_on(30)
