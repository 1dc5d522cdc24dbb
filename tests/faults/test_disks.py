"""Row 13: a checkpoint that cannot be written, or that the disk has spoilt."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.commands import Commands
from tests.faults.rows import Finding, row
from tests.faults.running import Run

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
OFTEN = ("--checkpoint-interval", "1")


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A disk of this size in a folder; only root can make one."""
    if os.geteuid() != 0:
        told = "FULL DISKS ARE NOT TRIED: mounting a small one needs root"
        if os.environ.get("CI"):
            pytest.fail(told)
        pytest.skip(told)
    folder.mkdir(parents=True)
    mount("-t", "tmpfs", "-o", f"size={size}", "none", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fails_and_goes_on(
    speedo: Commands, problem: Path, mode: str, finding: Finding, *, full: bool
) -> None:
    """The run says that it has no checkpoint, goes on, and writes one when it can."""
    folder = speedo.folder / "run" / "checkpoints"
    with small_disk(folder, "200k" if full else "64m"):
        if not full:
            mount("-o", "remount,ro", str(folder))
        run = Run(speedo, problem, mode, *OFTEN)
        run.wait_for(lambda: run.lines("checkpoint"))
        since = time.monotonic()
        finding.recovered(run.recovery(since))
        assert list(folder.iterdir()) == []
        mount("-o", "remount,rw,size=64m", str(folder))
        run.wait_for(lambda: run.lines("checkpoint")[-1]["problem"] is None)
        assert list(folder.glob("*.checkpoint"))
        run.goes_on()
        lines = run.stop_and_check()
        first = next(line for line in lines if line["event"] == "checkpoint")
        reason = "No space left" if full else "Read-only file system"
        assert reason in first["problem"]
        assert "make room there or make it writable" in first["problem"]
        assert reason in run.log()
        finding.note = "told; training went on; written when there was room"


@row(13, "checkpoint on a full disk", usual="partial")
def test_a_full_disk_costs_the_checkpoint_and_not_the_run(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    fails_and_goes_on(speedo, problem, mode, finding, full=True)


@row(13, "checkpoint on a read-only disk")
def test_a_read_only_disk_costs_the_checkpoint_and_not_the_run(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    fails_and_goes_on(speedo, problem, mode, finding, full=False)


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
