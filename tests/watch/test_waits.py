"""What every process waits for, of processes that hang in several ways."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speedo.system.process_state import states_of, takes_signal, writes_to
from speedo.watch.waits import SeenProcess, lines_of, look, stacks_in
from tests.support.commands import wait_until

WORKER = """
import ctypes, sys, time
from pathlib import Path
from speedo.engines.native_failures import capture_stderr
ctypes.CDLL(None).prctl  # so that nothing is imported later
capture_stderr(Path(sys.argv[1]))
def meet():
    print("ready", file=sys.stderr, flush=True)
    {hang}
meet()
"""
ROOT = Path(__file__).parents[2]
ASLEEP = "time.sleep(600)"
NATIVE = "while True: ctypes.PyDLL(None).sleep(600)  # holds the GIL, as a step of Caffe does"


@contextmanager
def hanging(run: Path, name: str, hang: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is named as Ray names its actors, writes to this log, and hangs."""
    log = run / "logs" / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    program = WORKER.replace("{hang}", hang)
    child = subprocess.Popen(
        ["ray::WorkerActor", "-c", program, str(log)],
        executable=sys.executable,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'packages' / 'caffe-nets'}"},  # no .venv by this name
    )
    try:
        wait_until(lambda: log.exists() and "ready" in log.read_text())
        yield child
    finally:
        child.kill()
        child.wait()


def seen_in(run: Path) -> SeenProcess:
    (found,) = look(run)
    return found


@pytest.mark.processes
@pytest.mark.parametrize("hang", [ASLEEP, NATIVE], ids=["asleep", "native"])
def test_a_process_that_hangs_says_where_even_in_native_code(tmp_path: Path, hang: str) -> None:
    with hanging(tmp_path, "worker-1", hang) as child:
        found = seen_in(tmp_path)
        assert child.poll() is None
    assert (found.process, found.pid, found.why_none) == ("worker 1", child.pid, "")
    assert [frame[2] for frame in found.stacks[0].frames] == ["meet", "<module>"]
    assert found.state.state == "S"
    assert not found.state.hangs


@pytest.mark.processes
def test_a_stopped_process_is_told_and_not_signalled(tmp_path: Path) -> None:
    with hanging(tmp_path, "worker-1", ASLEEP) as child:
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: states_of([child.pid])[child.pid].state == "T")
        found = seen_in(tmp_path)
        text = "\n".join(lines_of([found], None, "the master did not answer within 5 s"))
    assert found.state.hangs
    assert "stopped by a signal (SIGSTOP); SIGCONT lets it go on" in text
    assert "master     the master did not answer within 5 s" in text
    assert "no stack of Python: a stopped process answers no signal" in text


@pytest.mark.processes
def test_a_process_of_somebody_elses_gets_no_signal(tmp_path: Path) -> None:
    """Its own handler, or none, would do something else with it."""
    (tmp_path / "logs").mkdir()
    with (tmp_path / "logs" / "worker-0.log").open("wb") as log:
        child = subprocess.Popen(["sleep", "600"], stderr=log)
    try:
        assert writes_to(tmp_path / "logs") == {child.pid: tmp_path / "logs" / "worker-0.log"}
        assert not takes_signal(child.pid, signal.SIGUSR2)
        found = seen_in(tmp_path)
        assert found.why_none
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


STACKS = """reading the data
Thread 0x00007f01 (most recent call first):
  File "/site/speedo/exchange/channel.py", line 40 in commands
  File "/site/speedo/actors/worker_actor.py", line 222 in serve

Current thread 0x00007f02 (most recent call first):
  File "/site/{inner}", line 65 in {function}
  File "/site/speedo/worker/membership.py", line 88 in meet
  File "/site/speedo/worker/team_turn.py", line 60 in turn
"""


@pytest.mark.parametrize(
    ("inner", "function", "doing"),
    [
        ("speedo/exchange/team_meeting.py", "_wait_for", "waiting for other members of its team"),
        ("speedo/engines/pycaffe.py", "step", "computing"),
        ("speedo/storage/retrying_store.py", "call", "waiting for the store"),
        ("speedo/exchange/served_vectors.py", "fetch_center", "fetching"),
        ("speedo/exchange/served_vectors.py", "publish", "publishing"),
    ],
)
def test_what_a_worker_does_follows_from_where_it_is(inner: str, function: str, doing: str) -> None:
    found = stacks_in(STACKS.format(inner=inner, function=function))
    assert [stack.thread for stack in found] == ["0x00007f01", "0x00007f02"]
    state = states_of([os.getpid()])[os.getpid()]
    assert SeenProcess("worker 1", 1, Path("log"), state, found).doing == doing


def test_a_team_waits_for_the_member_that_does_not_wait() -> None:
    state = states_of([os.getpid()])[os.getpid()]
    seen = [
        SeenProcess(
            f"worker {worker}", 4711, Path("log"), state,
            stacks_in(STACKS.format(inner=inner, function="step")),
        )
        for worker, inner in enumerate(("speedo/exchange/team_meeting.py", "speedo/engines/pycaffe.py"))
    ]  # fmt: skip
    owed = [{"worker": one, "since_s": 1.5, "deadline_s": 12.0, "team": [0, 1]} for one in (0, 1)]
    workers = [
        {"worker": one, "state": "training", "away": False, "process": 1, "host": "here"}
        for one in (0, 1)
    ]
    lines = lines_of(
        seen, {"state": "training", "owed": owed, "workers": workers, "heard_s": 0.4}, ""
    )
    turn = "owes a turn for 1.5 s, must answer within 12 s, in a team of workers 0, 1"
    assert lines[:3] == [
        "  master     training; 2 turns are owed; the last message of a worker came 0.4 s ago",
        f"  worker 0: {turn}; waits for worker 1 of its team",
        f"  worker 1: {turn}",
    ]
