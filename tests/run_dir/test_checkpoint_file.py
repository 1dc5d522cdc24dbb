"""A checkpoint is there as a whole or not at all, and what a disk made of it is not believed."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from speedo.errors import CheckpointError, ConfigError, FencedError
from speedo.run_dir.checkpoint_file import (
    Checkpoint,
    Counters,
    WorkerState,
    checkpoints_in,
    latest,
    read_checkpoint,
    write_checkpoint,
)
from speedo.run_dir.fence import Fence, claim, epoch_of, owned
from speedo.run_dir.resume import find_run

COUNTERS = Counters(
    run="ab12", epoch=1, mode="sync", version=7, iteration=7, samples=448, received=14, seconds=1.5,
    layout=99, dropped={"late": 2},
)  # fmt: skip


def checkpoint(version: int = 7, epoch: int = 1) -> Checkpoint:
    return Checkpoint(
        replace(COUNTERS, version=version, epoch=epoch),
        np.arange(1000, dtype=np.float32) + version,
        b"the master's",
        {0: WorkerState(0, 2, 32, 7), 1: WorkerState(1, 2, 32, 7)},
        {0: b"zero" * 500, 1: b""},
    )


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "new", checkpoint())
    read = read_checkpoint(path)
    assert read.counters == COUNTERS
    assert read.center.dtype == np.float32
    np.testing.assert_array_equal(read.center, checkpoint().center)
    assert (read.master_history, read.histories) == (b"the master's", {0: b"zero" * 500, 1: b""})
    assert read.workers == checkpoint().workers
    assert list(path.parent.iterdir()) == [path]


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for version in (5, 6, 7):
        write_checkpoint(tmp_path, checkpoint(version))
    assert [read_checkpoint(path).counters.version for path in checkpoints_in(tmp_path)] == [7, 6]


def test_a_higher_epoch_is_newer_though_its_version_is_lower(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, checkpoint(version=90, epoch=1))
    write_checkpoint(tmp_path, checkpoint(version=40, epoch=2))
    assert latest(tmp_path)[1].counters.version == 40


def test_a_torn_file_is_refused_at_every_length_and_the_one_before_is_used(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, checkpoint(6))
    newest = write_checkpoint(tmp_path, checkpoint(7))
    whole = newest.read_bytes()
    for length in [*range(0, 900, 7), *range(900, len(whole), 251), len(whole) - 1]:
        newest.write_bytes(whole[:length])
        path, found, problems = latest(tmp_path)
        assert (path != newest, found.counters.version) == (True, 6)
        assert problems[0].startswith(f"{newest} is damaged: ")


def test_a_flipped_bit_is_refused_wherever_it_is(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, checkpoint())
    whole = path.read_bytes()
    for place in [*range(0, 900, 13), *range(900, len(whole), 197)]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match="damaged"):
            read_checkpoint(path)


@pytest.mark.processes
def test_a_disk_without_room_leaves_the_former_one_and_says_so(tmp_path: Path) -> None:
    """The kernel refuses the write after 3000 bytes, as a full disk does."""
    write_checkpoint(tmp_path, checkpoint(6))
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from tests.run_dir.test_checkpoint_file import checkpoint\n"
        "from speedo.run_dir.checkpoint_file import write_checkpoint\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "write_checkpoint(Path(sys.argv[1]), checkpoint(7))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"no checkpoint could be written in {tmp_path}: File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["000001-000000000006.checkpoint"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 3000


def test_a_folder_without_a_good_one_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "000001-000000000006.checkpoint").write_text("nothing of the kind")
    with pytest.raises(CheckpointError, match="does not start like a checkpoint"):
        latest(tmp_path)


def test_a_directory_that_cannot_be_resumed_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run directory"):
        find_run(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="holds no run"):
        find_run(tmp_path)
    (tmp_path / "config.yaml").write_text("mode: sync\n")
    with pytest.raises(CheckpointError, match="ended before its first one"):
        find_run(tmp_path)


def test_a_master_that_was_replaced_is_told_at_its_next_write(tmp_path: Path) -> None:
    now = 0.0
    old = Fence(tmp_path, epoch_of(tmp_path), lambda: now)
    old.check()
    assert claim(tmp_path) == 1
    old.check()  # asked a moment ago: not every merge reads a file
    now = 1.0
    with pytest.raises(FencedError, match=r"epoch is 1, ours 0"):
        old.check()
    with pytest.raises(FencedError):
        old.require()
    Fence(tmp_path, 1, lambda: now).require()
    assert claim(tmp_path) == 2


def test_a_run_is_owned_by_one_process_of_a_machine(tmp_path: Path) -> None:
    with owned(tmp_path, take_over=False):
        held = pytest.raises(
            ConfigError, match=r"still being trained by process \d+; `speedo stop`"
        )
        with held, owned(tmp_path, take_over=False):
            pass
        with owned(tmp_path, take_over=True):
            pass
    with owned(tmp_path, take_over=False):
        pass


@pytest.mark.parametrize(
    "spoilt", [b"", b"one\n", b"-1\n", b"\xff", b"9" * 60, b"4294967296\n", None]
)
def test_a_master_that_cannot_know_the_epoch_writes_nothing(
    tmp_path: Path, spoilt: bytes | None
) -> None:
    """Such a file counted as epoch 0, so an old master went on writing, and a new one took an epoch again."""
    assert claim(tmp_path) == 1
    path = tmp_path / "epoch"
    path.unlink()
    if spoilt is None:
        path.mkdir()
    else:
        path.write_bytes(spoilt)
    for epoch in (0, 1):
        with pytest.raises(FencedError, match=str(path)):
            Fence(tmp_path, epoch, lambda: 0.0).require()
    with pytest.raises(CheckpointError, match=str(path)):
        claim(tmp_path)


def test_a_master_whose_epoch_was_removed_writes_nothing(tmp_path: Path) -> None:
    """The next master would take the same epoch."""
    assert claim(tmp_path) == 1
    (tmp_path / "epoch").unlink()
    with pytest.raises(FencedError, match="is another one than this master has written"):
        Fence(tmp_path, 1, lambda: 0.0).require()
