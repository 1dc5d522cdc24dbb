"""A test that goes on until it is killed; only test_left_behind.py starts it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.support.commands import commands, wait_for_line
from tests.support.disks import small_disk
from tests.support.network import network


def test_that_is_killed(problem: Path, tmp_path: Path) -> None:
    with network(1) as (host,), small_disk(tmp_path / "disk", "1m"), commands(tmp_path) as speedo:
        options = ("--max-iter", "1000000", "--workers", "1")
        speedo.start("train", str(problem), "--run-dir", "run", *options, inside=host.inside)
        wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":3,', 120)
        told = Path(os.environ["TOLD"])
        told.with_suffix(".new").write_text(f"{host.name}\n{speedo.temporary}\n{tmp_path}\n")
        told.with_suffix(".new").rename(told)
        time.sleep(600)
