"""Lines meet a real disk that is full, and nothing of them is lost while memory holds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedo.messages import Drop
from speedo.run_dir.metrics_log import MetricsLog
from speedo.system.json_lines import line_of
from speedo.system.line_file import AGAIN_S, LineFile
from tests.support.disks import fill, small_disk

LINE = b"0123456789" * 99 + b"\n"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def gap(lines: int) -> bytes:
    return f"{lines} lost\n".encode()


@pytest.mark.processes
def test_lines_wait_for_room_and_are_whole(tmp_path: Path) -> None:
    clock = Clock()
    with small_disk(tmp_path / "disk", "64k"):
        file = LineFile(tmp_path / "disk" / "log", lost=gap, clock=clock)
        file.write(LINE)
        taken = fill(tmp_path / "disk")
        for _ in range(50):  # the last block has room for four, and a part of the fifth
            file.write(LINE)
        assert file.problem == "No space left on device"
        assert file.path.read_bytes() == LINE * (51 - len(file._waiting))
        taken.unlink()
        file.write(LINE)
        assert len(file._waiting) > 0  # not tried again so soon
        clock.now += AGAIN_S
        file.write(LINE)
        assert (file.problem, len(file._waiting), file.lines_lost) == ("", 0, 0)
        assert file.path.read_bytes() == LINE * 53
        assert file.close() == b""


@pytest.mark.processes
def test_what_memory_does_not_hold_is_counted_and_told_in_its_place(tmp_path: Path) -> None:
    clock = Clock()
    with small_disk(tmp_path / "disk", "64k"):
        file = LineFile(tmp_path / "disk" / "log", lost=gap, clock=clock, kept_bytes=2 * len(LINE))
        taken = fill(tmp_path / "disk")
        for _ in range(5):
            file.write(LINE)
        assert (len(file._waiting), file.lines_lost) == (2, 3)
        taken.unlink()
        clock.now += AGAIN_S
        assert file.flush()
        file.write(b"after\n")
        assert file.path.read_bytes() == LINE * 2 + b"3 lost\nafter\n"
        file.close()


@pytest.mark.processes
def test_what_is_never_written_is_handed_back(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k"):
        fill(tmp_path / "disk")
        file = LineFile(tmp_path / "disk" / "log")
        file.write(LINE)
        file.write(b"last\n")
        assert file.close() == LINE + b"last\n"
        file.write(LINE)
        assert file.path.read_bytes() == b""


@pytest.mark.processes
def test_nothing_that_waits_is_written_once_the_file_is_anothers(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k"):
        taken = fill(tmp_path / "disk")
        file = LineFile(tmp_path / "disk" / "log")
        file.write(LINE)
        taken.unlink()
        file.disown()
        assert file.path.read_bytes() == b""


@pytest.mark.processes
@pytest.mark.parametrize("closes", [True, False])
def test_a_run_log_on_a_full_disk_tells_and_does_not_end_the_run(
    tmp_path: Path, closes: bool
) -> None:
    told: list[str] = []
    drop = Drop(0, 1, 5, "refused", "x" * 500)
    with small_disk(tmp_path / "disk", "64k"):
        log = MetricsLog(tmp_path / "disk", 0.0, tell=told.append)
        taken = fill(tmp_path / "disk")
        for _ in range(20):
            log.did(drop, 1.0)
        assert len(told) == 1
        assert "metrics.jsonl cannot be written (No space left on device)" in told[0]
        if closes:
            assert log.close().count(line_of({"a": 1})[-1:]) > 0
        else:
            taken.unlink()
            log._file.flush()
            log.did(drop, 2.0)
            assert told[1:] == [""]
            assert len((tmp_path / "disk" / "metrics.jsonl").read_bytes().splitlines()) == 21
            assert log.close() == b""


def test_lines_written_together_reach_the_disk_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LineFile(path)
    file.write(b"first\n")
    with file.together():
        for number in range(200):
            file.write(b"%d\n" % number)
        assert path.read_bytes() == b"first\n"
    assert path.read_bytes() == b"first\n" + b"".join(b"%d\n" % number for number in range(200))
    file.close()
