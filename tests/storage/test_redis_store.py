"""Blobs in a real Redis: what a blob is there, and what the server's answers come to."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from speedo.errors import MissingKeyError, PayloadError, StoreError
from speedo.storage.redis.errors import server_problems, server_warnings, store_error
from speedo.storage.redis.resp import ReplyError
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from tests.storage.conftest import BODY, RawClient, get, put

pytestmark = pytest.mark.redis


def test_a_blob_that_lost_a_chunk_is_missing(store: RedisStore, raw: RawClient):
    store.write("k", b"head", BODY)
    chunks = raw.chunks("k")
    assert len(chunks) == 9
    raw.redis.delete(chunks[4])
    with pytest.raises(MissingKeyError, match="replaced, deleted or expired"):
        store.read("k", memoryview(bytearray(len(BODY))))
    store.ping()


@pytest.mark.parametrize("size", [1 << 20, 6 << 20])
def test_a_long_body_is_told_piece_by_piece(server: PrivateRedis, store: RedisStore, size: int):
    whole = RedisStore(server.url)  # its own lengths: one record, and chunks behind a record
    whole.write("long", b"head", memoryview(bytes(size)))
    told: list[int] = []
    whole.read("long", memoryview(bytearray(size)), told.append)
    whole.close()
    assert told[0] == 0
    assert told[-1] == size
    assert len(told) > 3


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

    monkeypatch.setattr("speedo.storage.redis.blobs.RedisBlobs._results", die)
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
        with pytest.raises(PayloadError, match="not of this version"):
            call()
    raw.redis.delete("k")
    raw.redis.lpush("k", b"list")
    with pytest.raises(StoreError, match="another program uses this key"):
        store.read("k", memoryview(bytearray(3)))
    raw.redis.delete("k")


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
    text = str(store_error(ReplyError(said), "h:1/0", "writing k", 5.0))
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


def record(head: int = 4, inline: int = 4, chunk: int = 64, body: int = 4) -> bytes:
    """A record whose lengths say what they like."""
    return struct.pack("<4sHHIIQ8s", b"SPB1", head, 0, inline, chunk, body, bytes(8)) + b"headbody"


@pytest.mark.parametrize(
    "lie",
    [
        record(head=5000),
        record(chunk=1, inline=1, body=1 << 60),
        record(chunk=0, inline=0, body=1 << 60),
        record(chunk=(1 << 32) - 1, inline=(1 << 32) - 1, body=1 << 63),
    ],
)
def test_no_writer_can_make_others_take_memory_for_lengths_it_invents(
    store: RedisStore, raw: RawClient, lie: bytes
):
    calls: list[Callable[[], object]] = [
        lambda: store.read("k", memoryview(bytearray(4))),
        lambda: store.read_head("k"),
    ]
    raw.redis.set("k", lie)
    for call in calls:
        with pytest.raises(PayloadError, match="not of this version"):
            call()
    put(store, "k", b"body")  # looks at what it replaces
    raw.redis.set("k", lie)
    store.delete("k")
    assert raw.redis.keys("*") == []
