"""What a host sees of a worker's process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil

from speedo.actors.worker_process import STOPPED_S, WorkerProcess

AT_WORK = "while True: sum(range(1000))"


def test_who_goes_on_between_two_looks_is_slow_and_not_stopped() -> None:
    """As under cpulimit, which stops a process most of the time."""
    with subprocess.Popen([sys.executable, "-c", AT_WORK]) as at_work:
        try:
            process = psutil.Process(at_work.pid)
            worker = WorkerProcess(0)
            worker._trained_by = [process]
            assert not worker.is_stopped(0.0)
            stop_after_some_work(process)
            assert not worker.is_stopped(10.0)
            assert not worker.is_stopped(10.0 + STOPPED_S - 0.1)
            assert worker.is_stopped(10.0 + STOPPED_S)
            os.kill(process.pid, signal.SIGCONT)
            stop_after_some_work(process)
            assert not worker.is_stopped(20.0), "it has worked between these looks"
            assert worker.is_stopped(20.0 + STOPPED_S)
        finally:
            at_work.kill()


def stop_after_some_work(process: psutil.Process) -> None:
    done = sum(process.cpu_times())
    while sum(process.cpu_times()) < done + 0.05:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGSTOP)
    while process.status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
