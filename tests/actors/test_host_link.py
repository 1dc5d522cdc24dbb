"""What `speedo worker` and the keeper of its host say to one another: either side may die, stop, or be replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from speedo.actors.join import host_link
from speedo.actors.join.host_link import (
    FOLDER,
    SOCKET,
    CommandLink,
    HostLink,
    Leave,
    Offer,
    Stopped,
)
from speedo.watch.status import StatusBoard
from tests.support.commands import wait_until
from tests.support.network import ROOT

OFFER = Offer("10.0.0.8:56126", 1, Path("logs"), Path())
# A keeper in a process of its own: it says `words`, or begins to, and stays.
KEEPER = """
import os, socket, sys, time
from multiprocessing.connection import Connection
made = socket.socket(socket.AF_UNIX)
made.connect(sys.argv[1])
keeper = Connection(made.detach())
keeper.recv()
if sys.argv[2] == "begins":
    os.write(keeper.fileno(), (1000).to_bytes(4, "big") + b"the first bytes")
else:
    keeper.send(sys.argv[2])
for wish in iter(keeper.recv, None):
    keeper.send(f"{sys.argv[2]}: {wish.why}")
"""


@contextmanager
def keeper(folder: Path, words: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", KEEPER, str(folder / SOCKET), words]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def link(tmp_path: Path) -> Iterator[CommandLink]:
    made = CommandLink(tmp_path)
    yield made
    made.close()


def next_of(link: CommandLink) -> object:
    """What is said next, within a minute."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        if (heard := link.heard(OFFER, 0.1)) is not None:
            return heard
    raise AssertionError("nothing was heard")


@pytest.mark.processes
@pytest.mark.parametrize("stopped", [False, True], ids=["lives", "stopped"])
def test_another_keeper_takes_the_place_of_one_that_was_given_up_and_the_former_is_ended(
    tmp_path: Path, link: CommandLink, stopped: bool
) -> None:
    with keeper(tmp_path, "first") as first:
        assert next_of(link) == "first"
        link.leave(Leave("SIGTERM"))
        assert next_of(link) == "first: SIGTERM"
        if stopped:
            first.send_signal(signal.SIGSTOP)
        with keeper(tmp_path, "second"):
            assert next_of(link) == "second"
            assert first.wait(60) == -signal.SIGKILL
            link.leave(Leave("SIGTERM"))
            assert next_of(link) == "second: SIGTERM", "it has not heard the wish yet"


@pytest.mark.processes
def test_a_keeper_that_stops_in_the_middle_of_a_message_is_gone_in_time(
    tmp_path: Path, link: CommandLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_link, "ANSWER_S", 1)
    with keeper(tmp_path, "begins"):
        with pytest.raises(EOFError):
            next_of(link)
        assert not link.is_kept
        with keeper(tmp_path, "second"):
            assert next_of(link) == "second"


@pytest.mark.slow
def test_a_keeper_whose_command_offers_nothing_ends_in_time(
    tmp_path: Path, link: CommandLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is stopped: its socket takes the connection."""
    monkeypatch.setattr(host_link, "ANSWER_S", 1)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(BlockingIOError):
        HostLink.of_this_node()


@pytest.mark.slow
def test_states_are_left_out_while_the_command_reads_nothing_and_its_other_words_come_later(
    tmp_path: Path, link: CommandLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_link, "ANSWER_S", 1)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    joining = ThreadPoolExecutor(1).submit(HostLink.of_this_node)
    assert link.heard(OFFER, 60.0) is None
    kept = joining.result(60)
    assert kept is not None
    assert kept.offer == OFFER
    board = StatusBoard("async", max_iter=100, batch=64, records=1000)
    state = board.status(0.0)
    for _ in range(3000):  # far more than a socket takes
        kept.tell(state)
    kept.tell("worker 0 has joined")
    kept.tell(Stopped())
    heard = []
    wait_until(lambda: heard.append(next_of(link)) or isinstance(heard[-1], Stopped))
    states, rest = heard[:-2], heard[-2:]
    assert rest == ["worker 0 has joined", Stopped()]
    assert 0 < len(states) < 3000
    assert set(map(type, states)) == {type(state)}
