"""Faults of a real Redis, met with patience: stopped, killed, full, and an answer that is lost."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import suppress

import pytest

from speedo.errors import StoreUnavailableError
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from speedo.storage.retrying_store import RetryingStore
from tests.storage.conftest import BODY, RawClient, get, put

pytestmark = pytest.mark.redis


def test_calls_go_on_after_the_server_was_stopped_for_a_while():
    with PrivateRedis() as server:
        told: list[str | None] = []
        store = RetryingStore(
            RedisStore(server.url, timeout_s=0.3), patience_s=30, on_trouble=told.append
        )
        big = bytes(3_000_000)
        put(store, "k")
        os.kill(server.process_id, signal.SIGSTOP)
        waking = threading.Timer(2.0, os.kill, (server.process_id, signal.SIGCONT))
        waking.start()
        put(store, "big", big)
        waking.join()
        assert get(store, "k") == (b"head", bytes(BODY))
        assert get(store, "big") == (b"head", big)
        assert len(told) == 2
        assert "did not answer in time" in (told[0] or "")
        assert store.outages == 1


def test_a_write_is_repeated_until_there_is_memory_again():
    with PrivateRedis() as server:
        raw = RawClient(server)
        store = RetryingStore(RedisStore(server.url, chunk_bytes=100_000), patience_s=30)
        put(store, "k")
        raw.redis.config_set("maxmemory", "1")
        roomy = threading.Timer(0.7, raw.redis.config_set, ("maxmemory", "0"))
        roomy.start()
        put(store, "big", bytes(1_000_000))
        roomy.join()
        assert store.outages == 1
        assert get(store, "k") == (b"head", bytes(BODY))
        assert get(store, "big") == (b"head", bytes(1_000_000))
        assert len(raw.chunks("big")) == 9


def test_a_full_server_lets_blobs_go_and_so_makes_room():
    """It takes no transaction then: what is deleted must not need one."""
    with PrivateRedis() as server:
        raw = RawClient(server)
        store = RedisStore(server.url, chunk_bytes=100_000)
        for key in ("one", "two"):
            put(store, key, bytes(1_000_000))
        raw.redis.config_set("maxmemory", "1")
        with pytest.raises(StoreUnavailableError):
            put(store, "three", bytes(1_000_000))
        store.delete("one", "two")
        assert raw.redis.keys("*") == []
        raw.redis.config_set("maxmemory", "0")
        put(store, "three", bytes(1_000_000))
        assert get(store, "three") == (b"head", bytes(1_000_000))


def test_without_memory_the_write_ends_with_the_remedy_and_leaves_no_part():
    with PrivateRedis(maxmemory_bytes=1 << 20) as server:
        store = RetryingStore(RedisStore(server.url, chunk_bytes=100_000), patience_s=0.3)
        with pytest.raises(StoreUnavailableError, match=r"raise its maxmemory.*in 0\.\d s"):
            put(store, "big", bytes(5_000_000))
        assert RawClient(server).redis.keys("*") == []


def test_a_killed_server_costs_no_call():
    with PrivateRedis() as server:
        store = RetryingStore(RedisStore(server.url, chunk_bytes=1000), patience_s=30)
        killed = threading.Timer(0.2, os.kill, (server.process_id, signal.SIGKILL))
        killed.start()
        body, writes = bytes(200_000), 0
        while store.outages == 0:
            put(store, f"k{writes % 5}", body)
            writes += 1
        killed.join()
        assert get(store, f"k{(writes - 1) % 5}") == (b"head", body)


class Forgetful:
    """Between a client and the server: of the first connection that says EXEC, it keeps the answer for itself."""

    def __init__(self, server: PrivateRedis) -> None:
        host, port = server.address.split(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.lost: bytes | None = None
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                said = bytearray()
                for a, b, answers in ((client, server, False), (server, client, True)):
                    threading.Thread(
                        target=self._pass_on, args=(a, b, said, answers), daemon=True
                    ).start()

    def _pass_on(
        self, source: socket.socket, sink: socket.socket, said: bytearray, answers: bool
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not answers:
                    said += data
                elif b"EXEC\r\n" in said and self.lost is None:
                    self.lost = data
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.mark.parametrize(("former", "size"), [(0, 50), (0, 1000), (500, 1000)])
def test_a_write_whose_answer_was_lost_is_written_again_without_a_trace(
    server: PrivateRedis, store: RedisStore, raw: RawClient, former: int, size: int
):
    between = Forgetful(server)
    url = server.url.replace(server.address, between.address)
    patient = RetryingStore(RedisStore(url, chunk_bytes=100), patience_s=20)
    if former:
        put(store, "k", bytes(former))
    body = bytes(BODY[:size])
    put(patient, "k", body)
    assert between.lost is not None
    assert b"OK" in between.lost, "the server had carried the transaction out"
    assert patient.outages == 1
    assert get(store, "k") == (b"head", body)
    assert len(raw.chunks("k")) == (size - 1) // 100
    between.close()


def test_a_delete_whose_answer_was_lost_is_repeated(server: PrivateRedis, store: RedisStore, raw):
    between = Forgetful(server)
    url = server.url.replace(server.address, between.address)
    patient = RetryingStore(RedisStore(url, chunk_bytes=100), patience_s=20)
    put(store, "k")
    patient.delete("k")
    assert patient.outages == 1
    assert store.keys("") == []
    assert raw.chunks("k") == []
    between.close()


def test_times_are_bounded_while_the_server_is_stopped():
    with PrivateRedis() as server:
        store = RetryingStore(RedisStore(server.url, timeout_s=0.2), patience_s=0.5)
        os.kill(server.process_id, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="did not recover"):
            store.ping()
        assert time.monotonic() - began < 10
