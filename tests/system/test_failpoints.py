"""A process that dies at one of two points at which two of its threads are has not died at the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TWO_THREADS = """
import os, threading, time
from speedo.system import failpoints

kill = os.kill
def slow(*which):
    time.sleep(0.3)  # as where the other thread runs before the process is gone
    kill(*which)
failpoints.os.kill = slow
threading.Thread(target=failpoints.reached, args=("master-merged",)).start()
failpoints.reached("master-checkpointing")
time.sleep(10)
"""


@pytest.mark.processes
def test_two_points_at_once_are_two_deaths(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "SPEEDO_FAILPOINT": "master-merged master-checkpointing",
        "SPEEDO_FAILPOINT_DONE": str(tmp_path / "done"),
    }
    for deaths in (1, 2):
        done = subprocess.run([sys.executable, "-c", TWO_THREADS], env=environment, timeout=60)
        assert done.returncode == -signal.SIGKILL
        assert len(list(tmp_path.iterdir())) == deaths
