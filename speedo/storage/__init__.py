"""Bytes under keys: the interface, the names of the keys, and the stores.

`RedisStore` and `PrivateRedis` are imported on first use, so that processes without Redis do not import redis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from speedo.storage.base import Store
from speedo.storage.keys import MAX_HEAD_BYTES
from speedo.storage.memory_store import MemoryStore

if TYPE_CHECKING:
    from speedo.storage.redis.server import PrivateRedis
    from speedo.storage.redis.store import RedisStore

__all__ = ["MAX_HEAD_BYTES", "MemoryStore", "PrivateRedis", "RedisStore", "Store"]


def __getattr__(name: str) -> Any:
    if name == "RedisStore":
        from speedo.storage.redis.store import RedisStore

        return RedisStore
    if name == "PrivateRedis":
        from speedo.storage.redis.server import PrivateRedis

        return PrivateRedis
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
