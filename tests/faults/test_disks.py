"""Row 13: a checkpoint that cannot be written, or that the disk has spoilt."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from speedo.actors.death_causes import SILENT
from speedo.watch.control_socket import RunSocket
from speedo.watch.status import LOG_BACK
from tests.faults.rows import Finding, Findings, row, scenario
from tests.faults.running import GAP_S, HANG_S, Run
from tests.support.commands import Commands, interrupt
from tests.support.disks import fill, is_full, mount, read_only, small_disk
from tests.support.invariants import check_run

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
OFTEN = ("--checkpoint-interval", "1")


@row(13, "newest checkpoint torn")
def test_a_torn_checkpoint_is_told_and_the_one_before_is_used(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    run = Run(speedo, problem, mode, *OFTEN)
    run.wait_for(lambda: len(run.lines("checkpoint")) >= 2)
    run.process.kill()
    run.process.communicate()
    assert speedo.all_gone_within(20)
    before, newest = sorted((run.dir / "checkpoints").glob("*.checkpoint"))[-2:]
    with newest.open("r+b") as file:
        file.truncate(newest.stat().st_size // 2)
    since = time.monotonic()
    run.resume()
    run.wait_for(lambda: run.lines("resumed"))
    (resumed,) = run.lines("resumed")
    run.wait_for(lambda: run.merged_after(resumed))
    finding.recovered(time.monotonic() - since)
    finding.note = "the one before was used"
    assert f"-{resumed['version']:012d}." in before.name
    assert f"{newest} is damaged" in run.log()
    run.goes_on()
    run.stop_and_check()


def status(run: Run) -> dict[str, Any]:
    """What `speedo status` is told, when train.log may be unable to tell."""
    (socket,) = (run.speedo.folder / "runtime").glob("*.sock")
    return RunSocket(socket.stem, socket.parent).ask("status")


def log_waits(run: Run) -> bool:
    return "metrics.jsonl cannot be written (No space left" in status(run)["log_problem"]


def check_parts(run: Run, elsewhere: Path) -> None:
    """The promises hold in what the run left in its directory and elsewhere, put together."""
    whole = run.speedo.folder / "whole"
    whole.mkdir()
    logs = [run.dir / "metrics.jsonl", elsewhere / "metrics.jsonl"]
    text = "".join(log.read_text() for log in logs if log.exists())
    (whole / "metrics.jsonl").write_text(text)
    shutil.copy(elsewhere / "result.json", whole)
    check_run(whole, run.solver.with_name("net.prototxt"), gap_s=GAP_S)


def ends_elsewhere(run: Run, home: Path, reason: str) -> dict[str, Any]:
    """Stop the run: its model and result are in a folder of their own, and it says so. The result."""
    interrupt(run.process)
    out, errors = run.process.communicate(timeout=HANG_S)
    assert run.process.returncode == 4, errors
    assert "Traceback" not in errors
    (folder,) = home.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    model = folder / "model.caffemodel"
    assert result["model"] == str(model) == out.splitlines()[-1]
    told = f"{run.dir / 'model.caffemodel'} could not be written ({reason}): kept in {model}"
    assert told in errors
    assert told in result["problems"][0]
    assert result["log_lines_lost"] == 0
    assert f"{run.dir / 'result.json'} could not be written ({reason})" in errors
    assert {path.name for path in run.dir.rglob("*.part")} == set()
    check_parts(run, folder)
    return result


NO_ROOM = "checkpoint on a full disk"
NOT_WRITABLE = "checkpoint on a read-only disk"
FOR_A_WHILE = "run directory on a disk that is full for a while"
FOR_GOOD = "run directory on a disk that stays full"


@scenario(dict.fromkeys((NO_ROOM, NOT_WRITABLE, FOR_A_WHILE, FOR_GOOD), 13), usual="async")
def test_disks_that_take_nothing_cost_no_run_and_no_output(
    speedo: Commands, problem: Path, mode: str, findings: Findings
) -> None:
    """First the disk of the checkpoints, then that of the run's directory."""
    disk, home = speedo.folder / "disk", speedo.folder / "home"
    folder = disk / "run" / "checkpoints"
    home.mkdir()
    with small_disk(disk, "64m"), small_disk(folder, "200k"):
        run = Run(speedo, problem, mode, *OFTEN, name="disk/run", environment={"HOME": str(home)})
        with findings.tries(NO_ROOM) as finding:
            has_no_checkpoint(run, "No space left", set(), finding)
            has_room_again(run)
        with findings.tries(NOT_WRITABLE) as finding:
            mount("-o", "remount,ro", str(folder))
            has_no_checkpoint(run, "Read-only file system", set(folder.iterdir()), finding)
            has_room_again(run)
        with findings.tries(FOR_A_WHILE) as finding:
            full_for_a_while(run, disk, finding)
        with findings.tries(FOR_GOOD) as finding:
            fill(disk)
            run.wait_for(lambda: log_waits(run))
            result = ends_elsewhere(run, home, "No space left on device")
            lost = f"lines of {run.dir / 'metrics.jsonl'} could not be written"
            assert lost in result["problems"][1]
            finding.note = (
                "model, result and the last lines of the log kept in the home folder; status 4"
            )


def has_no_checkpoint(run: Run, reason: str, there: set[Path], finding: Finding) -> None:
    """It says so with the reason, and goes on; no file but those that were there."""

    def told() -> list[str]:
        return [line["problem"] or "" for line in run.lines("checkpoint")]

    run.wait_for(lambda: any(reason in one for one in told()))
    finding.recovered(run.recovery(time.monotonic()))
    first = next(one for one in told() if reason in one)
    assert "make room there or make it writable" in first
    assert set((run.dir / "checkpoints").iterdir()) == there
    run.wait_for(lambda: reason in run.log())
    finding.note = "reported; training continued; written when there was room"


def has_room_again(run: Run) -> None:
    """A checkpoint is written, and training continues."""
    folder = run.dir / "checkpoints"
    mount("-o", "remount,rw,size=64m", str(folder))
    run.wait_for(lambda: run.lines("checkpoint")[-1]["problem"] is None)
    assert list(folder.glob("*.checkpoint"))
    run.goes_on()


def full_for_a_while(run: Run, disk: Path, finding: Finding) -> None:
    """What the disk did not take is written when there is room."""
    taken = fill(disk)
    run.wait_for(lambda: log_waits(run))
    assert is_full(disk)
    since, before = time.monotonic(), status(run)["version"]
    run.wait_for(lambda: status(run)["version"] > before)
    finding.recovered(time.monotonic() - since)
    run.workers()[0].kill()
    run.wait_for(lambda: status(run)["workers"][0]["away"])
    run.wait_for(lambda: not status(run)["workers"][0]["away"])  # its log met the full disk
    taken.unlink()
    run.wait_for(lambda: run.lines("left"))
    run.goes_on()
    assert status(run)["log_problem"] == ""
    assert [line["cause"] for line in run.lines("left")][:1] == [SILENT]
    assert "warning: " in run.log()
    run.wait_for(lambda: LOG_BACK in run.log())
    finding.note = "reported; every line is there; a worker was restarted meanwhile"


@row(13, "run directory read-only at the end")
def test_a_run_directory_that_becomes_read_only_costs_no_model(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    disk, home = speedo.folder / "disk", speedo.folder / "home"
    home.mkdir()
    with small_disk(disk, "64m"):
        run = Run(speedo, problem, mode, name="disk/run", environment={"HOME": str(home)})
        run.has_begun()
        with read_only(disk):
            ends_elsewhere(run, home, "Read-only file system")
    finding.note = "model and result kept in the home folder; status 4"


@row(13, "temporary folder full during a run")
def test_a_full_temporary_folder_ends_no_run(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    temporary = speedo.folder / "t"
    with small_disk(temporary, "24m"):
        tests = ("--test-interval", "1000")
        run = Run(speedo, problem, mode, *OFTEN, *tests, environment={"TMPDIR": str(temporary)})
        run.has_begun()
        # The tester has what it needs there.
        run.wait_for(lambda: any(not line["problem"] for line in run.lines("test")))
        fill(temporary)
        since = time.monotonic()
        finding.recovered(run.recovery(since))
        checkpoints = len(run.lines("checkpoint"))
        run.wait_for(lambda: len(run.lines("checkpoint")) > checkpoints + 1)
        lines = run.stop_and_check()
        told = [line["problem"] for line in lines if line["event"] == "checkpoint"]
        assert told == [None] * len(told)  # with the history of every worker
    finding.note = "the run continued, with complete checkpoints"
