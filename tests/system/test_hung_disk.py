"""Calls to a disk that does not answer: bounded, told with the path, and no reason for a process to stay."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from speedo.errors import CheckpointError
from speedo.run.outputs import Outputs
from speedo.run.training import Training
from speedo.system.daemon_thread import DaemonThread, within
from speedo.system.disk_calls import hangs, on_disk
from speedo.system.line_file import LineFile
from speedo.watch.status import StatusBoard

WAIT_S = 10.0


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe that takes no more bytes: a write stands still, as on a disk that hangs."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writes, bytes(1 << 16))
    os.set_blocking(writes, True)
    try:
        yield reads, writes
    finally:
        os.close(reads)


def test_a_call_is_left_behind_after_its_time() -> None:
    never = threading.Event()
    began = time.monotonic()
    with pytest.raises(OSError, match="no answer for 0 s"):
        within(0.1, never.wait)
    assert time.monotonic() - began < WAIT_S
    never.set()


def test_a_call_in_time_gives_its_answer_or_its_error() -> None:
    assert within(WAIT_S, lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        within(WAIT_S, lambda: 1 // 0)


def test_a_thread_makes_its_calls_in_order_and_ends() -> None:
    thread: DaemonThread[int] = DaemonThread("test")
    answers = [thread.submit(lambda number=number: 6 // number) for number in (3, 0, 2)]
    assert thread.close(WAIT_S)
    assert answers[0].result() == 2
    assert isinstance(answers[1].exception(), ZeroDivisionError)
    assert answers[2].result() == 3


def test_a_log_whose_disk_hangs_is_told_with_its_path_while_it_does(tmp_path: Path) -> None:
    with full_pipe() as (reads, writes):
        log = LineFile(tmp_path / "metrics.jsonl", descriptor=writes)
        thread = threading.Thread(target=log.write, args=(b"line\n",), daemon=True)
        thread.start()
        deadline = time.monotonic() + WAIT_S
        while not (told := hangs(thread.ident, 0.05)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert told.startswith(f"{tmp_path / 'metrics.jsonl'} has not answered for 0 s")
        assert hangs(threading.get_ident(), 0.0) == ""
        while thread.is_alive():
            os.read(reads, 1 << 20)
            thread.join(0.01)
        assert hangs(thread.ident, 0.0) == ""
        log.close()


def test_the_whole_of_nested_calls_counts(tmp_path: Path) -> None:
    with on_disk(tmp_path):
        with on_disk(tmp_path / "within"):
            pass
        time.sleep(0.01)
        assert str(tmp_path) + " has" in hangs(threading.get_ident(), 0.005)
    assert hangs(threading.get_ident(), 0.0) == ""


def test_a_run_that_stands_still_on_its_disk_says_so_to_whoever_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its command asks every second, and ends with this error; it waited for ever."""
    monkeypatch.setattr("speedo.system.daemon_thread.HUNG_S", 0.0)
    run: Any = SimpleNamespace(
        _thread=threading.get_ident(),
        parts=SimpleNamespace(status=StatusBoard("sync", 10, 1).status, run_dir=tmp_path),
        driver=SimpleNamespace(waits=lambda: ([], None)),
    )
    run.parts.status = partial(run.parts.status, 0.0)
    assert Training.status(run).mode == "sync"
    with on_disk(tmp_path / "epoch"):
        time.sleep(0.01)
        with pytest.raises(CheckpointError, match=f"continue with --resume {tmp_path}") as told:
            Training.status(run)
    assert str(tmp_path / "epoch") in str(told.value)
    run._thread = None
    assert Training.status(run).mode == "sync"


def test_a_model_goes_elsewhere_if_the_disk_of_the_run_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speedo.system.daemon_thread.HUNG_S", 0.2)
    home, run_dir, never = tmp_path / "home", tmp_path / "run", threading.Event()
    home.mkdir()
    run_dir.mkdir()
    monkeypatch.setenv("HOME", str(home))

    def write(path: Path) -> None:
        if path.parent == run_dir:
            never.wait()
        path.write_text("model")

    outputs = Outputs(run_dir)
    kept = outputs.keep("model.caffemodel", write)
    assert kept.is_relative_to(home)
    (problem,) = outputs.problems
    assert f"{run_dir / 'model.caffemodel'} could not be written (no answer for 0 s)" in problem
    never.set()
