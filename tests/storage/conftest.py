from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from speedo.storage.redis_server import PrivateRedis


@pytest.fixture(scope="session")
def server() -> Iterator[PrivateRedis]:
    with PrivateRedis(unix_socket=True) as running:
        yield running


@pytest.fixture
def raw(server: PrivateRedis) -> RawClient:
    return RawClient(server)


class RawClient:
    """A client that knows nothing of blobs, for looking behind the store's back."""

    def __init__(self, server: PrivateRedis) -> None:
        self.redis = redis.Redis.from_url(server.url)

    def chunks(self, key: str) -> list[bytes]:
        return sorted(self.redis.scan_iter(match=f"{key}#*"))
