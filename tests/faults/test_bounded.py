"""Rows 24 to 26: what would have no end. A master that is never idle, an old master's clean-up, a disk that hangs."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from speedo.actors.worker_process import STOPPED
from speedo.exchange.channel import SOCKET, pack
from speedo.master.checkpoint_writer import WRITE_S
from speedo.messages import StateSaved
from speedo.storage import keys
from tests.faults.rows import Finding, row
from tests.faults.running import HANG_S, Run, stand_still
from tests.faults.test_master import OFTEN, RESUMED_S, stopped
from tests.support.commands import Commands, free_port, interrupt
from tests.support.store_server import OwnRedis

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
EVICTED_S = 20.0  # the heartbeat of 10 s and three turns, on a busy machine
FILES = 20_000  # versions whose checkpoint would hang


@contextmanager
def never_idle(run: Run) -> Iterator[threading.Event]:
    """More messages for the master, of no turn, than it can take, until the event is set."""
    (path,) = {
        one.laddr
        for one in run.the("ray::MasterActor").net_connections("unix")
        if str(one.laddr).endswith(f"/{SOCKET}")
    }
    over = threading.Event()
    lines = pack(StateSaved(99, 1, -1)) * 1000

    def flood(channel: socket.socket) -> None:
        with suppress(OSError):
            while not over.is_set():
                channel.sendall(lines)

    with ExitStack() as stack:
        channels = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(6)]
        for number, channel in enumerate(channels):
            channel.connect(str(path))
            channel.sendall(b"[%d, 1]\n" % (90 + number))
        time.sleep(1.0)  # what comes with the greeting is read with it
        threads = [threading.Thread(target=flood, args=(one,), daemon=True) for one in channels]
        for thread in threads:
            thread.start()
        try:
            yield over
        finally:
            over.set()
            for thread in threads:
                thread.join(HANG_S)


@row(24, "worker hangs (SIGSTOP) while the master has more messages than it can take")
def test_a_hung_worker_is_evicted_by_a_master_that_is_never_idle(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    run = Run(speedo, problem, mode, "--workers", "2")
    run.has_begun()
    with never_idle(run) as over:
        run.goes_on()
        since = time.monotonic()
        stand_still(run.workers()[1])
        run.wait_for(lambda: run.lines("left"), EVICTED_S)
        finding.note = f"evicted after {time.monotonic() - since:.1f} s"
        finding.recovered(run.recovery(since))
        over.set()
        run.goes_on()
        run.stop_and_check()
    (left,) = run.lines("left")
    assert (left["worker"], left["cause"]) == (1, STOPPED)


@row(25, "an old `speedo master` revives, and its clean-up meets the keys of its successor")
def test_an_old_master_leaves_its_successors_keys_alone(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    ports = [str(free_port()), str(free_port())]
    with OwnRedis() as server:
        environment = {**server.environment}
        options = (*server.options, *OFTEN)
        run = Run(
            speedo, problem, mode, *options, "--port", ports[0], command="master",
            environment=environment,
        )  # fmt: skip
        worker = ("worker", "--workers", "2", "--master")
        old_host = speedo.start(*worker, f"127.0.0.1:{ports[0]}")
        run.has_begun(50)
        run.wait_for(lambda: run.lines("checkpoint"))
        old, theirs = run.process, speedo.left()
        stopped(theirs)
        since = time.monotonic()
        run.resume(
            "--resume", "take_over=yes", "--port", ports[1], *server.options, command="master",
            environment=environment,
        )  # fmt: skip
        speedo.start(*worker, f"127.0.0.1:{ports[1]}")
        run.wait_for(lambda: run.lines("resumed"), RESUMED_S)
        run.wait_for(lambda: run.merged_after(run.lines("resumed")[0]), RESUMED_S)
        finding.recovered(time.monotonic() - since)
        refused = len(run.results("refused"))
        for process in theirs:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        _, errors = old.communicate(timeout=HANG_S)
        assert old.returncode == 3, errors
        interrupt(old_host)  # it waits for a master to come back there
        old_host.communicate(timeout=HANG_S)
        run.goes_on(30)
        assert len(run.results("refused")) == refused, "its center was removed"
        name = run_name(run)
        assert epochs_in(server, name) >= {1}
        run.stop_and_check()
        assert epochs_in(server, name) == set()
        finding.note = "nothing of the new master was removed; it removed what the old one had left"


def epochs_in(server: OwnRedis, run: str) -> set[int]:
    """The epochs of the masters that have keys there."""
    found: Any = server.admin().keys(keys.pattern(keys.prefix(run)))
    return {keys.epoch_of(run, key.decode()) for key in found}


def run_name(run: Run) -> str:
    (socket_of_run,) = (run.speedo.folder / "runtime").glob("*.sock")
    return socket_of_run.stem


@row(26, "the disk of the checkpoints hangs, and stays so", ("sync", "async"))
def test_a_disk_that_hangs_costs_the_checkpoints_and_not_the_run(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    """A pipe in the place of each file: to open it takes until somebody reads it, which nobody does."""
    run = Run(speedo, problem, mode, "--checkpoint-interval", "1")
    run.has_begun()
    run.wait_for(lambda: run.lines("checkpoint"))
    folder, master = run.dir / "checkpoints", run.the("ray::MasterActor").pid
    for version in range(run.version, run.version + FILES):
        os.mkfifo(folder / f".000000-{version:012d}.checkpoint.{master}.part")
    since = time.monotonic()
    run.wait_for(lambda: run.lines("checkpoint")[-1]["problem"], WRITE_S + HANG_S)
    told = run.lines("checkpoint")[-1]["problem"]
    finding.note = f"reported after {time.monotonic() - since:.0f} s"
    assert told.startswith(f"{folder} has not answered for 12")
    assert "its disk hangs" in told
    finding.recovered(run.recovery(time.monotonic()))
    run.goes_on(30)
    since = time.monotonic()
    interrupt(run.process)
    _, errors = run.process.communicate(timeout=HANG_S)
    assert run.process.returncode == 4, errors
    assert f"{folder} has not answered" in errors
    assert "Traceback" not in errors
    assert (run.dir / "model.caffemodel").exists()
    assert speedo.all_gone_within(20)
    finding.note += f"; the run ended {time.monotonic() - since:.0f} s after Ctrl-C, with status 4"
    run.check()
