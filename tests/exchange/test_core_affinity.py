"""Workers draw the driver's thread to their core, and only there where it may run and is of use."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speedo.exchange.channel import Channels, EventQueue, Message, WorkerChannel
from speedo.exchange.core_affinity import Draw, DriverCore, DriverThread
from speedo.messages import Kind, Train, Trained

WAIT_S = 10.0
CORES = sorted(os.sched_getaffinity(0))
TRAINED = Trained(0, 1, 1, 0.5, 8)


class Sleeper:
    """A thread that waits, as the driver does; `cores` are those it may run on."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._there = threading.Event()
        self._thread = threading.Thread(target=self._sleep, daemon=True)
        self._thread.start()
        assert self._there.wait(WAIT_S)

    def _sleep(self) -> None:
        self.number = threading.get_native_id()
        self._there.set()
        self._over.wait(WAIT_S)

    @property
    def cores(self) -> set[int]:
        return set(os.sched_getaffinity(self.number))

    def end(self) -> None:
        self._over.set()
        self._thread.join(WAIT_S)


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    one = Sleeper()
    yield one
    one.end()


@pytest.fixture
def channel() -> Iterator[socket.socket]:
    """One end of a socket whose other end this process has, too."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours


@contextmanager
def held_to(cores: set[int]) -> Iterator[None]:
    """This thread runs on these cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("core", CORES[:2])
def test_a_worker_draws_the_driver_to_its_core(
    sleeper: Sleeper, channel: socket.socket, core: int
) -> None:
    draw = Draw(DriverThread(os.getpid(), sleeper.number, CORES), channel)
    with held_to({core}):
        draw()
    assert sleeper.cores == {core}


def test_the_driver_is_not_drawn_to_a_core_that_it_may_not_use(
    sleeper: Sleeper, channel: socket.socket
) -> None:
    elsewhere = [CORES[-1] + 1]
    Draw(DriverThread(os.getpid(), sleeper.number, elsewhere), channel)()
    assert sleeper.cores == set(CORES)


def test_a_number_from_another_namespace_of_processes_moves_nobody(
    sleeper: Sleeper, channel: socket.socket
) -> None:
    """There the master has another number than the one it knows itself by, and the thread's may be anybody's."""
    driver = DriverThread(os.getpid() + 1, sleeper.number, CORES)
    with held_to({CORES[0]}):
        Draw(driver, channel)()
    assert sleeper.cores == set(CORES)


def test_a_driver_that_has_ended_is_no_error(sleeper: Sleeper, channel: socket.socket) -> None:
    draw = Draw(DriverThread(os.getpid(), sleeper.number, CORES), channel)
    sleeper.end()
    draw()


def test_once_awake_the_driver_may_run_where_it_might_before(tmp_path: Path) -> None:
    heard: EventQueue[Message] = EventQueue()
    channels = Channels(tmp_path, heard)
    before = os.sched_getaffinity(0)
    assert heard.get(0.0) is None
    channels._core.for_workers(len(CORES))
    with held_to({CORES[0]}):  # as a worker would
        assert heard.get(0.0) is None
        assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("workers", "cores"),
    [
        (len(CORES), CORES),
        (len(CORES) + 1, CORES),
        (len(CORES) - 1, []),  # one is to spare
    ],
)
def test_it_may_be_drawn_while_workers_take_all_cores(workers: int, cores: list[int]) -> None:
    core = DriverCore()
    core.awake()
    told = core.for_workers(workers)
    assert told == DriverThread(os.getpid(), threading.get_native_id(), cores)


def test_nobody_is_told_of_a_thread_before_there_is_one() -> None:
    assert DriverCore().for_workers(len(CORES)).cores == []


@pytest.mark.parametrize("waits", [True, False])
def test_who_answers_and_waits_draws_the_driver(
    sleeper: Sleeper, tmp_path: Path, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = DriverThread(os.getpid(), sleeper.number, CORES)
    monkeypatch.setattr(DriverCore, "for_workers", lambda core, count: driver)
    heard: EventQueue[Message] = EventQueue()
    channels = Channels(tmp_path, heard)
    with WorkerChannel(str(tmp_path), 0, 1) as channel:
        assert channels.wait_for(0, 1, WAIT_S)
        commands = channel.commands()
        for ticket in (1, 2):  # the driver's thread is told once
            command = Train(0, 1, ticket, 0, 0, 1, 1, Kind.DELTA)
            assert channels.send(command)
            assert next(commands) == command
        with held_to({CORES[0]}):
            channel.answer(TRAINED, waits=waits)
        assert heard.get(WAIT_S) == TRAINED
        assert sleeper.cores == ({CORES[0]} if waits else set(CORES))
        channels.close(0, 1)
