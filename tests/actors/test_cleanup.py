"""The keeper of a Ray node: nothing of a node outlives the process that started it, whatever became of its raylet."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from speedo.actors.ray_node.folder import kept
from tests.support.commands import Commands, how_loaded, wait_for_line

STUBBORN = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "log = open(sys.argv[1] + '/log', 'w'); print(flush=True); time.sleep(60)"
)


def start_stubborn(folder: Path) -> subprocess.Popen[bytes]:
    """A process of its own session that holds a file in the folder open."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN, str(folder)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.read(1) == b"\n"
    return process


def at_work_in(folder: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            links = [link.readlink() for link in Path(f"/proc/{process.pid}/fd").iterdir()]
        except OSError:
            continue
        if any(str(link).startswith(folder + "/") for link in links):
            found.append(process)
    return found


@pytest.mark.processes
def test_what_is_left_of_a_stopped_node_is_ended_at_once_and_nothing_else(tmp_path: Path) -> None:
    folder, beside = tmp_path / "node", tmp_path / "node2"
    folder.mkdir()
    beside.mkdir()
    other = start_stubborn(beside)
    try:
        with kept(str(folder)), open(folder / "own", "w"):
            ours = start_stubborn(folder)
        assert ours.wait(40) == -signal.SIGKILL
        assert other.poll() is None
        assert not folder.exists()
    finally:
        other.kill()
        other.wait()


@pytest.mark.processes
def test_what_is_left_of_a_killed_process_is_ended_too(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from speedo.actors.ray_node.folder import kept\n"
        "from tests.actors.test_cleanup import start_stubborn\n"
        "with kept(sys.argv[1]):\n"
        "    start_stubborn(Path(sys.argv[1]))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = subprocess.run([sys.executable, "-c", code, str(folder)], check=False)
    assert process.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 40 * how_loaded()
    while folder.exists():
        assert time.monotonic() < deadline, at_work_in(str(folder))
        time.sleep(0.05)
    assert not at_work_in(str(folder))


@pytest.mark.ray
@pytest.mark.redis
@pytest.mark.caffe
@pytest.mark.parametrize("victims", ["of Ray", "the command"])
def test_nothing_of_a_node_outlives_those_that_were_killed(
    speedo: Commands, problem: Path, tmp_path: Path, victims: str
) -> None:
    run = speedo.start(
        "train",
        str(problem),
        "--max-iter",
        "1000000",
        "--test-interval",
        "0",
        "--run-dir",
        "run",
        "--restarts",
        "master_restarts=0",
    )
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":10,', 90)
    (raylet,) = speedo.programs("raylet")
    files = (str(link.readlink()) for link in Path(f"/proc/{raylet.pid}/fd").iterdir())
    folder = next(name for name in files if "/speedo-ray-" in name).split("/session_")[0]
    assert len(at_work_in(folder)) >= 7  # command, raylet, GCS, master, tester, two workers
    if victims == "of Ray":
        servers = speedo.programs("raylet", "gcs_server")
        assert len(servers) == 2
        for process in servers:
            process.kill()
    else:
        raylet.suspend()  # it can tell nobody any more
        run.kill()
    run.communicate(timeout=120)
    deadline = time.monotonic() + 120 * how_loaded()
    while Path(folder).exists():
        assert time.monotonic() < deadline, at_work_in(folder)
        time.sleep(0.05)
    assert not at_work_in(folder)
