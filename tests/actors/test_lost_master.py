"""A master that dies or does not answer while somebody starts: told in our words, and not as a bug of ours."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from speedo.actors.join import worker_command
from speedo.actors.join.host_link import SOCKET, CommandLink, Offer
from speedo.actors.join.host_node import NotAMasterError, _error
from speedo.errors import ClusterError, EngineError, FencedError, RunInterrupted, StoreError
from speedo.watch.console import Quiet

MISMATCH = (
    "The cluster was started with: Ray: {} Python: {} This process on 10.0.0.8 was started with: Ray: 2.60.0 "
    "Python: 3.11.2"
)


def errors_of_ray() -> list[tuple[Exception, str]]:
    from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError

    return [
        (GetTimeoutError("late"), "did not answer for 60 s"),
        (ActorDiedError(), "the master's process died"),
        (ActorUnavailableError("away", None), "the master's process died"),
    ]


def test_a_start_on_one_machine_ends_with_a_sentence(tmp_path: Path) -> None:
    from speedo.actors.attempts import told_of

    prepared: Any = SimpleNamespace(run_dir=tmp_path)
    for error, words in errors_of_ray():
        with pytest.raises(RunInterrupted, match=words), told_of(prepared, lambda: None):
            raise error
        with pytest.raises(RunInterrupted, match="raylet"), told_of(prepared, lambda: "no raylet"):
            raise error


@pytest.mark.parametrize(
    ("error", "ours", "told"),
    [
        (StoreError("away; iteration 5 is kept"), True, RunInterrupted),  # a new Redis may do
        (StoreError("away; iteration 5 is kept"), False, StoreError),
        (FencedError("another master"), True, FencedError),
        (OSError("no space left"), True, EngineError),
        (ZeroDivisionError("of a bug"), True, ZeroDivisionError),
    ],
)
def test_what_ends_the_master_is_told_as_what_it_is(
    tmp_path: Path, error: Exception, ours: bool, told: type[Exception]
) -> None:
    from ray.exceptions import RayTaskError

    from speedo.actors.attempts import told_of

    settings = SimpleNamespace(redis_is_ours=ours)
    prepared: Any = SimpleNamespace(run_dir=tmp_path, settings=settings)
    with pytest.raises(Exception, match=str(error)) as caught, told_of(prepared, lambda: None):
        raise RayTaskError("run", "traceback of a bug", error).as_instanceof_cause()
    assert isinstance(caught.value, told)
    assert isinstance(caught.value, RunInterrupted) == (told is RunInterrupted)


def said_of(address: str, timeout_s: float, words: Path) -> tuple[str, list[str]]:
    """The error, and the notes before it, of a host that joins there."""
    notes: list[str] = []
    deadline = time.monotonic() + timeout_s
    joining = worker_command._joined(address, "0" * 64, deadline, words, notes.append)
    with pytest.raises(ClusterError) as caught, joining:
        pass
    return str(caught.value), notes


@pytest.mark.ray
def test_a_worker_says_that_nobody_answers_behind_an_open_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        error, notes = said_of(address, 1.0, tmp_path / "host.log")
    assert error.startswith(f"the program at {address} is not a SpeeDO master")
    assert notes == []  # there was time for one try


@pytest.mark.slow
def test_a_worker_tries_again_and_says_so_once_while_no_master_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tries: list[str] = []

    @contextmanager
    def refused(address: str, *_: Any) -> Iterator[None]:
        tries.append(address)
        time.sleep(0.1)
        raise NotAMasterError("nobody")
        yield

    monkeypatch.setattr(worker_command, "host_node", refused)
    error, notes = said_of("10.0.0.7:56126", 0.5, tmp_path / "host.log")
    assert error == "nobody"
    assert len(tries) > 2
    (note,) = notes
    assert note.startswith("10.0.0.7:56126 accepts the connection, but no master answers there yet")


@pytest.mark.slow
def test_a_host_whose_keeper_died_with_its_master_joins_the_one_that_came_back(
    tmp_path: Path,
) -> None:
    """At once: a master that was started again knows nothing of the nodes of the one before."""
    link, back = CommandLink(tmp_path), threading.Event()
    keeper = Connection(connected(tmp_path / SOCKET).detach())
    monitor: Any = SimpleNamespace(came_back_within=lambda seconds: back.is_set())
    node: Any = SimpleNamespace(dead=lambda: None)

    def dies() -> None:
        keeper.recv()
        keeper.close()
        time.sleep(0.5)
        back.set()

    thread = threading.Thread(target=dies)
    thread.start()
    offer = Offer("10.0.0.7:56126", 1, tmp_path, tmp_path)
    began = time.monotonic()
    ending = worker_command._follow(link, offer, node, [], monitor, lambda: None, 60.0, Quiet(), [])
    took_s = time.monotonic() - began
    thread.join()
    link.close()
    assert isinstance(ending, worker_command.Crashed)
    assert 0.5 < took_s < worker_command.UNKEPT_S / 2


def connected(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.connect(str(path))
    return made


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("RPC error: InvalidAuthToken: Authentication token is", "refused our token: copy the token file"),
        (MISMATCH.format("2.1.0", "3.11.2"), "Ray differs: .* has 2.1.0, this node 2.60.0: pip install ray==2.1.0"),
        (MISMATCH.format("2.60.0", "3.9.1"), "Python differs: .* has 3.9.1, this node 3.11.2: use Python 3.9.1"),
        ("the raylet was lost", "answers, but this machine's Ray did not join it: open the ports"),
    ],
)  # fmt: skip
def test_rays_words_become_what_to_do(words: str, told: str) -> None:
    assert re.search(told, str(_error("10.0.0.7:56126", words)))


def test_a_host_looks_for_masters_at_no_place_of_a_former_standby() -> None:
    first, second, third = "10.0.0.5:56126", "10.0.0.6:56126", "10.0.0.7:56126"
    looks = worker_command._where_masters_may_be
    assert looks(first, first, second) == [first, second]
    assert looks(first, first, third) == [first, third], "the second has left"
    assert looks(first, third, second) == [first, third, second], "the third has taken over"
