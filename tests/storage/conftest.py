from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from speedo.storage.base import Store
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore

BODY = memoryview(bytes(range(250)) * 4)


@pytest.fixture(scope="session")
def server() -> Iterator[PrivateRedis]:
    with PrivateRedis(unix_socket=True) as running:
        yield running


@pytest.fixture
def raw(server: PrivateRedis) -> RawClient:
    return RawClient(server)


@pytest.fixture
def store(server: PrivateRedis) -> Iterator[RedisStore]:
    made = RedisStore(server.url, chunk_bytes=100, timeout_s=2.0)
    yield made
    made.close()
    RawClient(server).redis.flushall()  # what a test that failed left must not fail the others


class RawClient:
    """A client that knows nothing of blobs and may do everything, for looking behind the store's back."""

    def __init__(self, server: PrivateRedis) -> None:
        rules = ("on", ">everything", "~*", "&*", "+@all")
        RedisStore(server.url).administer("ACL", "SETUSER", "tester", *rules)
        self.url = f"redis://tester:everything@{server.address}/0"
        self.redis = redis.Redis.from_url(self.url)

    def chunks(self, key: str) -> list[bytes]:
        return sorted(self.redis.scan_iter(match=f"{key}#*"))


def put(store: Store, key: str, body: bytes = bytes(BODY), head: bytes = b"head") -> None:
    store.write(key, head, memoryview(body))


def get(store: Store, key: str) -> tuple[bytes, bytes]:
    into = bytearray(store.read_head(key)[1])
    return store.read(key, memoryview(into)), bytes(into)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
