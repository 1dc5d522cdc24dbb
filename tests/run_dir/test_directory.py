"""A run writes over nothing that is somebody's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from speedo.errors import ConfigError
from speedo.run_dir.directory import check_run_dir, create_run_dir, discard_run_dir
from tests.support.disks import fill, small_disk


@pytest.mark.parametrize(
    "name",
    ["model.caffemodel", "config.yaml", "train.log", "epoch", "lock", "checkpoints/old.checkpoint",
     "logs/master.log", "net_iter_10.caffemodel"],
)  # fmt: skip
def test_a_file_under_a_name_of_the_runs_is_not_written_over(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(ConfigError) as told:
        create_run_dir(tmp_path, "net")
    assert f"run_dir {tmp_path} holds {name.split('/')[0]}, which the run would write over" in str(
        told.value
    )
    assert "give another directory with --run-dir, or move that away" in str(told.value)
    assert file.read_text() == "mine"


def test_a_link_that_leads_nowhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "model.caffemodel").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"holds model\.caffemodel"):
        check_run_dir(tmp_path)


def test_other_files_and_empty_folders_are_no_hindrance(tmp_path: Path) -> None:
    for name in ("other.caffemodel", "other_iter_10.caffemodel", "notes.txt"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "checkpoints").mkdir()
    create_run_dir(tmp_path, "net")
    discard_run_dir(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoints", "notes.txt", "other.caffemodel", "other_iter_10.caffemodel",
    ]  # fmt: skip


def test_a_run_that_never_began_can_be_begun_again_there(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    create_run_dir(tmp_path)
    (tmp_path / "train.log").write_text("a mistake in the net")
    (tmp_path / "lock").write_text("1\n")
    discard_run_dir(tmp_path)
    create_run_dir(tmp_path)


@pytest.mark.processes
def test_a_directory_on_a_full_disk_is_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k"):
        fill(tmp_path / "disk")
        with pytest.raises(ConfigError, match="No space left on device; make room there"):
            create_run_dir(tmp_path / "disk")


@pytest.mark.caffe
def test_the_command_refuses_before_anything_starts(problem: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "model.caffemodel").write_text("mine")
    ended = subprocess.run(
        [sys.executable, "-m", "speedo", "train", str(problem), "--max-iter", "20", "--run-dir", str(folder)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert (folder / "model.caffemodel").read_text() == "mine"
    assert ended.returncode == 2
    assert ended.stderr == (
        f"speedo: run_dir {folder} holds model.caffemodel, which the run would write over; give another directory "
        "with --run-dir, or move that away\n"
    )
    assert [path.name for path in folder.iterdir()] == ["model.caffemodel"]
