"""The store as the processes of a run use it: it waits while it is away, and takes the short way if there is one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from speedo.master.slots import ServerAddress
from speedo.run.settings import Near, RunSettings
from speedo.storage.base import Store
from speedo.storage.redis.store import RedisStore
from speedo.storage.redis.url import url_by_socket
from speedo.storage.retrying_store import RetryingStore
from speedo.storage.shared_memory.store import SharedMemoryStore
from speedo.storage.tiered_store import TieredStore
from speedo.vectors.exchange import Stores

AStore = TypeVar("AStore", bound=Store)


def this_machine() -> str:
    """The boot of this machine, and the network that this process sees."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{os.stat('/proc/self/ns/net').st_ino}"


def is_near(near: Near) -> bool:
    """Whether this process can take the master's short ways: it is on the same machine, and may use them."""
    if near.machine != this_machine():
        return False
    places = [place for place in (near.folder, near.socket) if place]
    return bool(places) and all(os.access(place, os.R_OK | os.W_OK) for place in places)


def overlaps(settings: RunSettings) -> bool:
    """Whether a worker in this process is given its next turn ahead."""
    return settings.overlap == "all" or (settings.overlap == "far" and not is_near(settings.near))


def log_trouble(trouble: str | None) -> None:
    """Say in this process's log that the store is waited for, or that it is back."""
    print("the store is back" if trouble is None else f"waiting: {trouble}", file=sys.stderr)


def redis_store(url: str, settings: RunSettings) -> RedisStore:
    """Redis at a user's own URL, by its socket from near."""
    near = settings.near
    if near.socket and is_near(near):
        return RedisStore(url_by_socket(url, near.socket))
    return RedisStore(url, ca_pem=settings.redis_ca)


def run_store(
    url: str, settings: RunSettings, on_trouble: Callable[[str | None], None] = log_trouble
) -> RetryingStore | TieredStore:
    """The store of a run at a user's own URL of Redis, with the patience of the run's timeout."""
    far = RetryingStore(
        redis_store(url, settings), patience_s=settings.timeout_s, on_trouble=on_trouble
    )
    return by_shared_memory(far, settings.near)


def server_store(
    address: ServerAddress,
    settings: RunSettings,
    on_trouble: Callable[[str | None], None] = log_trouble,
) -> RetryingStore | TieredStore:
    """The store of one server."""
    near = Near(address.machine, socket=address.socket)
    return run_store(address.url, replace(settings, near=near, redis_ca=address.ca), on_trouble)


def server_stores(
    addresses: Sequence[ServerAddress],
    settings: RunSettings,
    on_trouble: Callable[[str | None], None] = log_trouble,
    *,
    both_ways: bool = False,
) -> list[Stores]:
    """Connections to all servers; `both_ways`: two to each, as fetching and publishing overlap."""
    return [
        Stores(
            server_store(one, settings, on_trouble),
            server_store(one, settings, on_trouble) if both_ways else None,
        )
        for one in addresses
    ]


def by_shared_memory(far: AStore, near: Near) -> AStore | TieredStore:
    """With shared memory before it, if there is such for this process."""
    if near.by_memory and is_near(near):
        return TieredStore(SharedMemoryStore(Path(near.folder)), far)
    return far
