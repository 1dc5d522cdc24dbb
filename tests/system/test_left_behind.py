"""Tests that are killed while a run goes on leave no process, namespace, mount or folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.commands import how_loaded
from tests.support.left_behind import MARK, left_of, namespaces
from tests.support.network import ROOT, require_namespaces

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]


def still_there(mark: str, place: str, folders: list[Path]) -> list[str]:
    texts = [one.read_bytes() for one in Path("/proc").glob("[0-9]*/cmdline")]
    return [
        *(" ".join(one.words)[:200] for one in left_of(mark)),
        *(["a keeper"] if any(mark.encode() in text for text in texts) else []),
        *(name for name in namespaces() if name == place),
        *(str(folder) for folder in folders if folder.exists()),
        *(line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folders[0]) in line),
    ]  # fmt: skip


def test_a_test_run_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    require_namespaces()
    told, mark = tmp_path / "told", f"{os.environ[MARK]}/killed"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider"),
            *("--basetemp", str(tmp_path / "base"), "tests/system/left_running.py"),
        ],
        cwd=ROOT,
        env={**os.environ, MARK: mark, "TOLD": str(told)},
        start_new_session=True,
    )
    deadline = time.monotonic() + 150 * how_loaded()
    while not told.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    place, *names = told.read_text().split()
    left = left_of(mark)
    folders = [tmp_path / "base", *map(Path, names)]
    folders += [Path(one.words[4]) for one in left if one.is_keeper]
    assert any("ray::WorkerActor" in " ".join(one.words) for one in left)
    assert any(folder.is_relative_to("/dev/shm") for folder in folders)
    assert place in namespaces()
    assert [folder for folder in folders if not folder.exists()] == []
    assert len([one for one in still_there(mark, place, folders) if "tmpfs" in one]) == 1
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30 * how_loaded()
    while found := still_there(mark, place, folders):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_the_temporary_folder_of_others_stays(tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    program = (
        "import tempfile; from tests.support import left_behind; tempfile.gettempdir();"
        "left_behind.start(); left_behind.all_is_well()"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(others)},
        check=True,
    )
    assert others.is_dir()
