from __future__ import annotations

import os
import signal
import socket
import threading
import time

import pytest

from speedo.errors import MissingKeyError, StoreError, StoreTimeoutError
from speedo.storage import RedisStore
from speedo.storage.redis_errors import refusal, server_problems, server_warnings
from speedo.storage.redis_server import PrivateRedis
from speedo.storage.resp import ReplyError
from tests.storage.conftest import RawClient

pytestmark = pytest.mark.redis

BODY = memoryview(bytes(range(250)) * 4)


@pytest.fixture
def store(server: PrivateRedis):
    made = RedisStore(server.url, chunk_bytes=100, timeout_s=2.0)
    yield made
    made.delete(*made.keys(""))
    made.close()


def password(url: str) -> str:
    return url.split("@")[0].split(":")[-1]


def test_a_blob_that_lost_a_chunk_is_missing(store: RedisStore, raw: RawClient):
    store.write("k", b"head", BODY)
    chunks = raw.chunks("k")
    assert len(chunks) == 9
    raw.redis.delete(chunks[4])
    with pytest.raises(MissingKeyError, match="replaced, deleted or expired"):
        store.read("k", memoryview(bytearray(len(BODY))))
    store.ping()


def test_chunks_expire_with_their_record_and_are_no_blob_without_it(
    store: RedisStore, raw: RawClient
):
    store.write("k", b"head", BODY, expire_s=20)
    assert all(
        raw.redis.pexpiretime("k") <= raw.redis.pexpiretime(chunk) < raw.redis.pexpiretime("k") + 50
        for chunk in raw.chunks("k")
    )
    raw.redis.delete("k")
    with pytest.raises(MissingKeyError):
        store.read_head("k")
    raw.redis.delete(*raw.chunks("k"))


def test_a_writer_that_dies_before_its_record_leaves_nothing_for_ever(
    store: RedisStore, raw: RawClient, monkeypatch: pytest.MonkeyPatch
):
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("speedo.storage.redis_blobs.RedisBlobs._results", die)
    with pytest.raises(KeyboardInterrupt):
        store.write("k", b"head", BODY)
    assert len(raw.chunks("k")) == 9
    assert all(0 < raw.redis.pttl(chunk) < 70_000 for chunk in raw.chunks("k"))
    assert store.keys("") == []
    raw.redis.delete(*raw.chunks("k"))


def test_chunks_of_a_complete_blob_stay(store: RedisStore, raw: RawClient):
    store.write("k", b"head", BODY)
    assert {raw.redis.pttl(chunk) for chunk in [b"k", *raw.chunks("k")]} == {-1}


def test_another_programs_data_is_not_taken_for_a_blob(store: RedisStore, raw: RawClient):
    raw.redis.set("k", b"something else that is longer than a prefix")
    for call in (lambda: store.read_head("k"), lambda: store.read("k", memoryview(bytearray(3)))):
        with pytest.raises(StoreError, match="not of this version"):
            call()
    raw.redis.delete("k")
    raw.redis.lpush("k", b"list")
    with pytest.raises(StoreError, match="another program's data"):
        store.read("k", memoryview(bytearray(3)))
    raw.redis.delete("k")


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
            assert 0.2 < time.monotonic() - began < 2
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
        assert time.monotonic() - began < 1
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


def test_wrong_and_missing_passwords_are_told(server: PrivateRedis, monkeypatch):
    with pytest.raises(StoreError, match="does not accept this user and password") as caught:
        RedisStore(f"redis://:secret@{server.address}").ping()
    assert "secret" not in str(caught.value)
    with pytest.raises(StoreError, match="put it into SPEEDO_REDIS_PASSWORD"):
        RedisStore(f"redis://{server.address}").ping()
    monkeypatch.setenv("SPEEDO_REDIS_PASSWORD", password(server.url))
    RedisStore(f"redis://{server.address}").ping()


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


def test_a_full_server_is_told_keeps_the_old_blob_and_no_orphans():
    with PrivateRedis(maxmemory_bytes=8 << 20) as small:
        store = RedisStore(small.url, chunk_bytes=100_000)
        store.write("k", b"old", BODY)
        with pytest.raises(StoreError, match="raise its maxmemory"):
            store.write("k", b"", memoryview(bytes(20_000_000)))
        assert get(store, "k") == (b"old", bytes(BODY))
        assert RawClient(small).chunks("k") == []
        with pytest.raises(StoreError, match="raise its maxmemory"):
            fill(store)
        assert get(store, "k") == (b"old", bytes(BODY))
        store.delete(*store.keys("big"))
        store.write("k", b"new", memoryview(bytes(2_000_000)))
        assert store.read_head("k") == (b"new", 2_000_000)


def fill(store: RedisStore) -> None:
    for i in range(200):
        store.write(f"big{i}", b"", memoryview(bytes(90_000)))


def get(store: RedisStore, key: str) -> tuple[bytes, bytes]:
    into = bytearray(store.read_head(key)[1])
    return store.read(key, memoryview(into)), bytes(into)


def test_a_private_server_passes_the_check(store: RedisStore):
    assert store.check_server() == []


def test_settings_that_lose_weights_are_refused(server: PrivateRedis, store, raw: RawClient):
    raw.redis.config_set("maxmemory", "1gb")
    raw.redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(StoreError, match="set maxmemory-policy noeviction"):
            store.check_server()
    finally:
        raw.redis.config_set("maxmemory", "0")
        raw.redis.config_set("maxmemory-policy", "noeviction")


def test_the_check_names_every_problem_and_warning():
    replica = {"redis_version": "5.0.1", "role": "slave"}
    assert len(server_problems(replica, "h:1/0")) == 2
    costly = {"aof_enabled": "1", "maxmemory": "0", "maxmemory_policy": "allkeys-lru"}
    warnings = server_warnings(costly, "h:1/0", guarded=False)
    assert [w.split(": ")[-1] for w in warnings] == [
        "set appendonly no",
        "set maxmemory-policy noeviction",
        "set one (requirepass)",
    ]


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("MISCONF Redis is configured to save RDB snapshots", "free the disk"),
        ("READONLY You can't write against a read only replica.", "URL of the primary"),
        ("LOADING Redis is loading the dataset in memory", "wait, or start it empty"),
        ("NOPERM this user has no permissions", "allow the commands and keys"),
        ("ERR unknown", "see the server's log"),
        ("ERR AUTH <password> called without any password configured", "remove it from"),
    ],
)
def test_refusals_come_with_a_remedy(said: str, remedy: str):
    text = refusal(ReplyError(said), "h:1/0", "writing k")
    assert remedy in text
    assert "h:1/0" in text


def test_a_user_with_few_rights_is_enough(server: PrivateRedis, raw: RawClient):
    rights = [
        "~speedo:*",
        "+get",
        "+getrange",
        "+set",
        "+unlink",
        "+multi",
        "+exec",
        "+persist",
        "+pexpire",
        "+ping",
        "+scan",
    ]
    raw.redis.execute_command("ACL", "SETUSER", "worker", "on", ">pw", *rights)
    worker = RedisStore(f"redis://worker:pw@{server.address}", chunk_bytes=100)
    worker.write("speedo:k", b"head", BODY)
    assert get(worker, "speedo:k") == (b"head", bytes(BODY))
    assert worker.keys("speedo:") == ["speedo:k"]
    with pytest.raises(StoreError, match="refuse this user"):
        worker.write("other", b"", BODY)
    assert "not checked" in worker.check_server()[0]
    worker.delete("speedo:k")
    raw.redis.execute_command("ACL", "DELUSER", "worker")
