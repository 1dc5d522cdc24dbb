"""A wait of a test that fails says what it waited for, and what it saw last."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.commands import wait_for_line, wait_until


def test_a_condition_is_shown_with_its_values_and_the_end_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.log").write_text("waiting for workers\n")
    wanted = 7
    with pytest.raises(AssertionError) as found:
        wait_until(lambda: len(list(tmp_path.iterdir())) == wanted, 0.0)
    for said in ("iterdir())) == wanted", "'wanted': 7", "waiting for workers", "last False"):
        assert said in str(found.value)


def test_a_line_that_does_not_come_is_shown_with_those_that_did(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("joined: worker 0\n")
    with pytest.raises(AssertionError, match=r"no 'merged' within 0\.0 s; .*joined: worker 0"):
        wait_for_line(log, "merged", 0.0)


@pytest.mark.processes
def test_a_command_that_ended_is_not_waited_for(tmp_path: Path) -> None:
    with subprocess.Popen(["true"], text=True) as process:
        process.wait()
    with pytest.raises(AssertionError, match=r"ended without 'merged'; .*without a log"):
        wait_for_line(tmp_path / "train.log", "merged", 60.0, process)
