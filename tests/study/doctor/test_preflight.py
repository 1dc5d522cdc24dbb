"""What would end a run soon is told before it begins, in the doctor's words."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from speedo.errors import MachineError
from speedo.study.doctor import NodeRequest, require
from speedo.study.doctor.checks.limits import FILES, FILES_PER_WORKER, limits
from tests.support.disks import fill, small_disk

HERE = Path(__file__).parents[3]
NOBODY = 65533


def typed(*arguments: str, inside: tuple[str, ...] = (), **environment: str) -> tuple[int, str]:
    ended = subprocess.run(
        [*inside, sys.executable, "-m", "speedo", *arguments],
        env={**os.environ, "PYTHONPATH": str(HERE), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stderr


COMMANDS = pytest.mark.parametrize(
    "command",
    [("train", "--run-dir"), ("master", "--run-dir"), ("worker", "--master", "127.0.0.1:1", "--token-file")],
    ids=lambda command: command[0],
)  # fmt: skip


@pytest.mark.processes
@COMMANDS
def test_a_name_too_long_for_sockets_is_told_before_anything_starts(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    folder = tmp_path / ("t" * 100)
    folder.mkdir()
    status, errors = typed(*command, str(tmp_path / "run"), TMPDIR=str(folder))
    assert status == 1
    (line,) = errors.splitlines()
    assert line.startswith(f"speedo: temporary: {folder} is too long a name for sockets: ")
    assert line.endswith("set TMPDIR to a folder with a shorter name, as in TMPDIR=/tmp")
    assert not (tmp_path / "run").exists()


@pytest.mark.processes
@COMMANDS
def test_too_few_open_files_are_told_before_anything_starts(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    allowed = ("prlimit", "--nofile=48:48")
    status, errors = typed(*command, str(tmp_path / "run"), inside=allowed)
    assert status == 1
    (line,) = errors.splitlines()
    assert line.startswith("speedo: files: 48 open files allowed, ")
    assert "ulimit -n 1024, for which root must raise the hard limit of 48" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.processes
def test_a_temporary_folder_with_too_little_room_is_told(tmp_path: Path) -> None:
    with small_disk(tmp_path / "t", "1m"):
        status, errors = typed(
            "train", "--run-dir", str(tmp_path / "run"), TMPDIR=str(tmp_path / "t")
        )
    assert status == 1
    assert errors.startswith(f"speedo: temporary: 1.0 MB free in {tmp_path / 't'}, a run needs")
    assert "set TMPDIR to a folder with more" in errors


@pytest.mark.processes
def test_a_full_disk_where_the_run_would_go_is_told(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k"):
        fill(tmp_path / "disk")
        with pytest.raises(MachineError, match=r"disk: 0\.0 kB free in .*give another --run-dir"):
            require(NodeRequest(run_dir=tmp_path / "disk" / "run"))


@pytest.mark.processes
def test_threads_of_a_user_are_counted_against_the_limit() -> None:
    """In a child that is another user: root is not bound by it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        told = [f"{one.level} {one.text}; {one.remedy}" for one in limits(NodeRequest(workers=2))]
        os.write(writing, "\n".join(told).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as answer:
        threads = answer.read().splitlines()[1]
    assert threads.startswith("fail 100 threads allowed to this user, ")
    assert threads.endswith("raise the limit: ulimit -u 4096")


def test_files_grow_with_the_workers() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = FILES + 10 * FILES_PER_WORKER
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, before[1]))
        assert [next(limits(NodeRequest(workers=n))).level for n in (10, 11)] == ["warn", "fail"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_machine_that_will_do_is_told_nothing(tmp_path: Path) -> None:
    require(NodeRequest(run_dir=tmp_path / "run"))
