"""Connections of the Redis store: how they are made, how they break, and what is said then."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import pytest

from speedo.errors import StoreError, StoreTimeoutError
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from speedo.storage.redis.url import url_by_socket
from tests.storage.conftest import BODY, RawClient

pytestmark = pytest.mark.redis


def test_a_stopped_server_is_told_within_the_deadline_and_works_again(server: PrivateRedis):
    store = RedisStore(server.url, timeout_s=0.3)
    store.write("k", b"old", memoryview(b"old"))
    os.kill(server.process_id, signal.SIGSTOP)
    try:
        for call in (
            lambda: store.read("k", memoryview(bytearray(3))),
            lambda: store.write("k", b"new", memoryview(bytes(3_000_000))),
            store.ping,
        ):
            began = time.monotonic()
            with pytest.raises(StoreTimeoutError, match="did not answer in time") as caught:
                call()
            assert 0.2 < time.monotonic() - began < 10
            assert server.address in str(caught.value)
    finally:
        os.kill(server.process_id, signal.SIGCONT)
    into = bytearray(3)
    assert store.read("k", memoryview(into)) == b"old"
    assert into == b"old"
    store.delete("k")
    store.close()


def test_a_dribbling_server_ends_with_the_call_as_a_whole():
    """Every wait is short, but the call's own bound ends it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def dribble() -> None:
            peer, _ = listener.accept()
            with peer:
                for _ in range(100):
                    try:
                        peer.sendall(b"x")
                    except OSError:
                        return
                    time.sleep(0.05)

        thread = threading.Thread(target=dribble, daemon=True)
        thread.start()
        store = RedisStore(f"redis://127.0.0.1:{port}", timeout_s=0.4)
        began = time.monotonic()
        with pytest.raises(StoreTimeoutError):
            store.ping()
        assert time.monotonic() - began < 4
        thread.join(10)


def test_a_connection_that_the_server_closed_is_opened_again(store: RedisStore, raw: RawClient):
    store.write("k", b"head", BODY)
    raw.redis.client_kill_filter(_type="normal", skipme=True)
    assert store.read_head("k") == (b"head", len(BODY))


def test_a_listener_that_is_no_redis_is_told():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(StoreError, match="begins no reply"):
            RedisStore(f"redis://127.0.0.1:{port}", timeout_s=2).ping()
        thread.join(10)


def test_no_server_is_told_with_the_remedy(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    store = RedisStore(f"redis://:secret@127.0.0.1:{port}/2")
    with pytest.raises(StoreError) as caught:
        store.ping()
    assert str(caught.value) == (
        f"no Redis answers at 127.0.0.1:{port}/2: start it or give another --redis URL"
    )
    with pytest.raises(StoreError, match="no Redis answers at"):
        RedisStore(f"unix://{tmp_path}/none").ping()


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:6379",
        "http://:secret@h:1",
        "redis://:secret@h:port",
        "redis://:sec/ret@h:1",
        "redis://h:6379/db",
        "redis://h:99999",
        "unix://",
        "redis://:secret@h?secret=1",
        "redis://:secret@h?socket_timeout=secret",
        "",
    ],
)
def test_what_is_no_url_is_told_without_quoting_it(url: str):
    with pytest.raises(StoreError, match="not the URL of a Redis") as caught:
        RedisStore(url)
    assert "sec" not in str(caught.value).replace("special", "")
    assert caught.value.__cause__ is None


def password(url: str) -> str:
    return url.split("@")[0].split(":")[-1]


def test_wrong_and_missing_passwords_are_told(server: PrivateRedis, monkeypatch):
    with pytest.raises(StoreError, match="does not accept this user and password") as caught:
        RedisStore(f"redis://:secret@{server.address}").ping()
    assert "secret" not in str(caught.value)
    with pytest.raises(StoreError, match="put it into SPEEDO_REDIS_PASSWORD"):
        RedisStore(f"redis://{server.address}").ping()
    monkeypatch.setenv("SPEEDO_REDIS_PASSWORD", password(server.url))
    RedisStore(f"redis://master@{server.address}").ping()


def test_the_password_is_in_no_text(server: PrivateRedis, store: RedisStore):
    store.ping()
    secret = password(server.url)
    assert len(secret) == 48
    for text in (repr(store), str(store), store.address, repr(server), str(server), server.address):
        assert secret not in text


def test_a_database_that_does_not_exist_is_told(server: PrivateRedis):
    with pytest.raises(StoreError, match="no such database"):
        RedisStore(server.url.replace("/0", "/99")).ping()


def test_databases_are_apart(server: PrivateRedis, store: RedisStore):
    other = RedisStore(server.url.replace("/0", "/1"))
    store.write("k", b"", BODY)
    assert other.keys("") == []
    other.close()


@pytest.mark.parametrize("way", [{}, {"tls": True}, {"host": "::1"}])
def test_the_own_address_is_that_of_the_connection(way: dict[str, str]) -> None:
    with PrivateRedis(**way) as running:  # type: ignore[arg-type]
        store = RedisStore(running.url, ca_pem=running.ca_pem)
        assert store.own_address() == way.get("host", "127.0.0.1")
        store.close()


def test_by_a_unix_socket_the_own_address_is_loopbacks(server: PrivateRedis) -> None:
    store = RedisStore(url_by_socket(server.url, server.socket_path))
    assert store.own_address() == "127.0.0.1"
    store.close()
