"""What a host sees of a worker's process."""

from __future__ import annotations

import os
import select
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


def test_the_end_of_a_process_wakes_its_host_unless_it_is_starting() -> None:
    with subprocess.Popen([sys.executable, "-c", AT_WORK]) as at_work:
        worker = WorkerProcess(0)
        worker._death = os.pidfd_open(at_work.pid)
        assert not ends_within(worker, 10)
        at_work.kill()
        assert ends_within(worker, 10_000)
        worker.starting = object()
        assert not ends_within(worker, 0)
        worker.end()
        assert not ends_within(worker, 0)


def ends_within(worker: WorkerProcess, milliseconds: int) -> bool:
    deaths = select.poll()
    worker.end_wakes(deaths)
    return bool(deaths.poll(milliseconds))
