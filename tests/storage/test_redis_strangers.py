"""Connections without a password do not take the room of members: who is cut off, when, and what is said."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from speedo.errors import StoreError, StoreUnavailableError
from speedo.storage.redis import strangers as module
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from speedo.storage.redis.url import url_by_socket
from speedo.storage.retrying_store import RetryingStore
from tests.support.commands import wait_until

pytestmark = pytest.mark.redis

FEW = 64  # connections that a server takes in these tests
WAYS = [{}, {"unix_socket": True}, {"tls": True}]

# Opens silent connections, as many as it is told, says how many stayed out, and waits for its end.
CROWD = """
import resource, socket, sys
count, port = int(sys.argv[1]), int(sys.argv[2])
most = max(count + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
print(len(crowd), flush=True)
sys.stdin.read()
"""


def place(server: PrivateRedis) -> tuple[str, int]:
    host, _, port = server.address.rpartition(":")
    return host, int(port)


def member(server: PrivateRedis, patience_s: float = 20.0) -> RetryingStore:
    return RetryingStore(RedisStore(server.url, ca_pem=server.ca_pem), patience_s=patience_s)


def is_cut(stranger: socket.socket) -> bool:
    """Whether the server has closed it, after whatever it said."""
    stranger.settimeout(0)
    try:
        while stranger.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@contextlib.contextmanager
def strangers(server: PrivateRedis, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(place(server), timeout=10))
            for _ in range(count)
        ]


@pytest.mark.parametrize("way", WAYS, ids=["plain", "socket", "tls"])
def test_a_member_gets_in_although_strangers_take_every_place(way: dict[str, bool]) -> None:
    with PrivateRedis(max_clients=FEW, **way) as server, strangers(server, 2 * FEW) as crowd:
        store = member(server)
        store.ping()
        wait_until(lambda: all(map(is_cut, crowd)))
        store.ping()
        store.close()


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 and resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 10_500,
    reason="only root can open so many connections here",
)
def test_a_member_gets_in_among_more_strangers_than_a_server_usually_takes() -> None:
    with PrivateRedis(unix_socket=True) as server:
        crowd = subprocess.Popen(
            [sys.executable, "-c", CROWD, "10400", str(place(server)[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == "10400\n"
            store = member(server)
            store.ping()
            store.close()
        finally:
            crowd.communicate()


def test_strangers_that_come_back_all_the_time_keep_no_member_out() -> None:
    over = threading.Event()

    def insist(port: int) -> None:
        held: list[socket.socket] = []
        while not over.is_set():
            held = [one for one in held if not is_cut(one)]  # forgotten, and replaced
            while len(held) < FEW:
                with contextlib.suppress(OSError):
                    held.append(socket.create_connection(("127.0.0.1", port), timeout=5))
        for one in held:
            one.close()

    with PrivateRedis(max_clients=FEW) as server:
        insisting = threading.Thread(target=insist, args=place(server)[1:])
        insisting.start()
        try:
            store = member(server)
            store.ping()
            store.close()
        finally:
            over.set()
            insisting.join()


def test_who_does_not_log_in_is_cut_off_and_a_silent_member_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOGIN_S", 2.0)
    with PrivateRedis() as server, strangers(server, 1) as (stranger,):
        silent = RedisStore(server.url)
        silent.ping()
        assert not is_cut(stranger)
        stream = silent._stream
        wait_until(lambda: is_cut(stranger))
        silent.ping()
        assert silent._stream is stream  # the same connection
        silent.close()


def test_one_that_talks_without_a_password_is_cut_off_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOGIN_S", 2.0)
    with PrivateRedis() as server, strangers(server, 1) as (stranger,):

        def talks() -> bool:
            with contextlib.suppress(OSError):
                stranger.sendall(b"PING\r\n")
            return not is_cut(stranger)

        assert talks()
        wait_until(lambda: not talks())


def test_after_a_crash_of_the_server_the_strangers_are_kept_out_again() -> None:
    with PrivateRedis(max_clients=FEW, unix_socket=True) as server:
        former = server.process_id
        os.kill(former, signal.SIGKILL)
        wait_until(lambda: server.process_id != former)
        store = RedisStore(server.url)
        wait_until(lambda: not fails(store) and connections(store) == 2)  # this one, and the watch
        with strangers(server, 2 * FEW) as crowd:
            wait_until(lambda: all(map(is_cut, crowd)))
            other = member(server)
            other.ping()
            other.close()
        store.close()


def test_a_crowd_is_told_once_with_where_it_comes_from() -> None:
    told: list[str] = []
    with PrivateRedis(max_clients=FEW, tell=told.append) as server:
        for _ in range(2):
            with strangers(server, 2 * FEW) as crowd:
                wait_until(lambda crowd=crowd: all(map(is_cut, crowd)))
        address = server.address
    assert len(told) == 1
    assert f"connections without login at {address}, " in told[0]
    assert " of them from 127.0.0.1: they are closed" in told[0]


@pytest.mark.parametrize("way", ["port", "socket", "tls"])
def test_a_server_without_room_is_named_as_such(way: str) -> None:
    with PrivateRedis(max_clients=2, unix_socket=way == "socket", tls=way == "tls") as server:
        url = url_by_socket(server.url, server.socket_path) if way == "socket" else server.url
        there = RedisStore(url, ca_pem=server.ca_pem)
        there.ping()  # beside whoever looks after strangers
        for _ in range(20):  # the server's words and the end of the connection race
            late = RedisStore(url, ca_pem=server.ca_pem)
            with pytest.raises(StoreUnavailableError, match=r"no more clients.*maxclients"):
                late.ping()
        there.close()
        wait_until(lambda: not fails(late))
        late.close()


def connections(store: RedisStore) -> int:
    said = store.administer("INFO", "clients")
    assert isinstance(said, bytes)
    return int(said.split(b"connected_clients:")[1].split()[0])


def fails(store: RedisStore) -> bool:
    try:
        store.ping()
    except StoreError:
        return True
    return False


def test_a_server_with_too_little_room_for_a_run_is_warned_of() -> None:
    with PrivateRedis(max_clients=20) as server:
        store = RedisStore(server.url)
        assert store.check_server(clients=10) == []
        (warning,) = store.check_server(clients=30)
        assert "takes 20 clients at once, of which 2 are there, and this run may want 30" in warning
        assert "set maxclients 32 or more" in warning
        store.close()
