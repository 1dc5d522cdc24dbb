"""The socket of a run: who may reach it, what it takes, and what is left of a dead one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speedo.errors import ClusterError
from speedo.watch.control_socket import (
    MOST_ASKED_BYTES,
    Asked,
    ControlServer,
    RunGone,
    RunSocket,
    plain,
    running,
    runtime_folders,
)

LEADER = """
import sys, time
from speedo.watch.control_socket import ControlServer
with ControlServer(sys.argv[1], lambda asked: {}):
    print("served", flush=True)
    time.sleep(60)
"""


def echo(asked: Asked) -> dict[str, Any]:
    if asked["ask"] == "fail":
        raise ClusterError("it cannot: do something else")
    return {"heard": dict(asked), "loss": float("nan")}


def spoken(runtime: Path, line: bytes, run: str = "one") -> bytes:
    """What the socket answers to these very bytes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(str(runtime / f"{run}.sock"))
        connection.sendall(line)
        return connection.recv(65536)


def test_a_question_has_its_answer_and_what_is_not_finite_is_null(runtime: Path) -> None:
    with ControlServer("one", echo):
        (found,) = running()
        answer = found.ask("scale", workers=3)
    assert answer == {"heard": {"ask": "scale", "workers": 3}, "loss": None}


def test_an_error_of_the_run_is_the_askers(runtime: Path) -> None:
    with ControlServer("one", echo), pytest.raises(ClusterError, match="do something else"):
        running()[0].ask("fail")


def test_folder_and_socket_are_the_users_alone(runtime: Path) -> None:
    former = os.umask(0)
    try:
        with ControlServer("one", echo):
            assert runtime.stat().st_mode & 0o777 == 0o700
            assert (runtime / "one.sock").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(former)
    assert list(runtime.iterdir()) == []


def open_to_others(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)


def a_link(folder: Path) -> None:
    elsewhere = folder.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)


def a_file(folder: Path) -> None:
    folder.touch(mode=0o600)


@pytest.mark.parametrize("make", [open_to_others, a_link, a_file])
def test_a_folder_that_others_may_have_made_is_refused_by_both_sides(
    runtime: Path, make: Callable[[Path], None]
) -> None:
    make(runtime)
    with pytest.raises(ClusterError, match="SPEEDO_RUNTIME_DIR"), ControlServer("one", echo):
        pass
    with pytest.raises(ClusterError, match="SPEEDO_RUNTIME_DIR"):
        running()


@pytest.mark.parametrize(
    "line",
    [b"status\n", b"[]\n", b"\n", b"[" * 4000 + b"\n", b'{"ask": "' + b"x" * MOST_ASKED_BYTES + b'"}\n'],
    ids=["no JSON", "no object", "nothing", "deep", "too long"],
)  # fmt: skip
def test_what_is_no_question_is_refused_and_the_next_one_answered(
    runtime: Path, line: bytes
) -> None:
    with ControlServer("one", echo):
        assert spoken(runtime, line).startswith(b'{"error": ')
        assert running()[0].ask("again")["heard"] == {"ask": "again"}


def test_who_says_nothing_keeps_nobody_waiting(runtime: Path) -> None:
    with ControlServer("one", echo), socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(runtime / "one.sock"))
        assert running()[0].ask("status", timeout_s=3)["heard"] == {"ask": "status"}


def test_a_run_that_does_not_answer_is_told_within_the_time(runtime: Path) -> None:
    free = threading.Event()
    with ControlServer("one", lambda asked: free.wait(20)):
        with pytest.raises(ClusterError, match=r"run one did not answer within 0 s"):
            running()[0].ask("status", timeout_s=0.2)
        free.set()


@pytest.mark.processes
def test_the_socket_of_a_killed_process_is_removed_by_who_finds_it(runtime: Path) -> None:
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER, "dead"], stdout=subprocess.PIPE, text=True
    )
    with leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == "served\n"
        leader.kill()
    assert (runtime / "dead.sock").exists()
    with ControlServer("alive", echo):
        assert [found.run for found in running()] == ["alive"]
        assert not (runtime / "dead.sock").exists()
        with pytest.raises(RunGone):
            RunSocket("dead", runtime).ask("status")


def test_a_successor_of_the_same_run_keeps_its_socket(runtime: Path) -> None:
    former = ControlServer("one", lambda asked: {"who": "former"})
    with ControlServer("one", lambda asked: {"who": "never"}):
        pass
    former.__enter__()
    with ControlServer("one", lambda asked: {"who": "successor"}):
        former.__exit__(None, None, None)
        assert running()[0].ask("status") == {"who": "successor"}


def test_a_folder_with_a_long_name_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 150)
    monkeypatch.setenv("SPEEDO_RUNTIME_DIR", str(folder))
    with ControlServer("one", echo):
        assert running()[0].ask("status")["heard"] == {"ask": "status"}


def test_both_usual_places_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run started at login and a command given without one meet, and the other way round."""
    monkeypatch.delenv("SPEEDO_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert runtime_folders() == (tmp_path / f"speedo-{os.geteuid()}",)
    with ControlServer("without", echo):
        (tmp_path / "session").mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "session"))
        with ControlServer("with", echo):
            assert (tmp_path / "session" / "speedo" / "with.sock").exists()
            assert [found.run for found in running()] == ["with", "without"]


def test_plain_data_has_no_paths_tuples_or_infinities() -> None:
    assert plain({1: (Path("/a"), float("inf")), "b": RunSocket("r", Path("/c"))}) == {
        "1": ["/a", None],
        "b": {"run": "r", "folder": "/c", "suffix": ".sock"},
    }
