"""A master that dies or does not answer while somebody starts: told in our words, and not as a bug of ours."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from speedo.errors import ClusterError, EngineError
from tests.support.commands import free_port


def errors_of_ray() -> list[tuple[Exception, str]]:
    from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError

    return [
        (GetTimeoutError("late"), "did not answer for 60 s"),
        (ActorDiedError(), "the master's process died"),
        (ActorUnavailableError("away", None), "the master's process died"),
    ]


def test_a_start_on_one_machine_ends_with_a_sentence(tmp_path: Path) -> None:
    from speedo.actors.launch import _told_of

    prepared: Any = SimpleNamespace(run_dir=tmp_path)
    for error, words in errors_of_ray():
        with pytest.raises(EngineError, match=words), _told_of(prepared):
            raise error


def test_a_host_that_joins_takes_it_for_a_lost_master_and_a_bug_for_a_bug() -> None:
    from ray.exceptions import RayTaskError

    from speedo.actors.join.session_process import _ray_lost_the_master

    for error, _ in errors_of_ray():
        assert _ray_lost_the_master(error) == type(error).__name__
    for bug in (RayTaskError("join", "traceback", ValueError("ours")), ValueError("ours")):
        assert _ray_lost_the_master(bug) == ""


def test_a_worker_says_that_nobody_answers_behind_an_open_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from speedo.actors.join import find_master as meeting

    # Ray's own try to be answered takes twenty seconds.
    monkeypatch.setattr(meeting, "_probe", lambda *_: (None, "DEADLINE_EXCEEDED"))
    notes: list[str] = []
    port = free_port()
    address = f"127.0.0.1:{port}"
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ClusterError, match="is not a SpeeDO"),
    ):
        meeting.wait_for_master(address, "0" * 64, 1.2, notes.append)
    assert notes == [
        f"{address} accepts the connection, but no master answers there yet; waiting up to 1 s"
    ]


def test_a_ray_that_does_not_join_the_master_is_told_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from speedo.actors.join import session_process

    @contextmanager
    def hanging(*_: Any) -> Iterator[None]:
        time.sleep(0.5)
        raise ClusterError("after all")
        yield

    monkeypatch.setattr(session_process.session, "member", hanging)
    monkeypatch.setattr(session_process, "JOIN_S", 0.1)
    for name in ("_end_at_once", "_listen"):  # the real ones end this process
        monkeypatch.setattr(session_process.Session, name, lambda _: None)
    ours, theirs = Pipe()
    ours.send(
        session_process.Request(
            f"127.0.0.1:{free_port()}", "0" * 64, 1, 0.1, name="a", logs=tmp_path, folder=tmp_path, data_root=tmp_path
        )
    )  # fmt: skip
    session_process.Session(theirs).serve()
    told = ours.recv()
    assert "answers, but this machine's Ray did not join it: open the ports" in str(told.error)
