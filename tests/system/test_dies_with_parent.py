from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.support.commands import how_loaded

pytestmark = pytest.mark.processes

PARENT = """
import subprocess, sys, threading
from speedo.system import dies_with_parent
child = subprocess.Popen(dies_with_parent.command(["sleep", "1000"]))
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_ends_with_the_process_that_started_it(end: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    deadline = time.monotonic() + 20 * how_loaded()
    while child.name() != "sleep" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert child.name() == "sleep"
    parent.send_signal(end)
    parent.communicate(timeout=20)
    psutil.wait_procs([child], timeout=20)
    assert not child.is_running()


def test_whose_parent_is_gone_already_does_not_start() -> None:
    words = [sys.executable, "-m", "speedo.system.dies_with_parent", "1", "9", "echo", "started"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout == ""
