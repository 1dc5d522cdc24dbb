"""Opens the store for a process of a run: with retries, and on the master's machine by shared memory or unix socket."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from speedo.exchange.served_vectors import Stores
from speedo.master.slots import ServerAddress
from speedo.run.settings import Near, RunSettings
from speedo.storage.base import Store
from speedo.storage.conditional import Guard
from speedo.storage.lease import CALL_S, MasterFence, MasterLease
from speedo.storage.redis.store import RedisStore
from speedo.storage.redis.url import url_by_socket
from speedo.storage.retrying_store import Patience, RetryingStore, noting
from speedo.storage.shared_memory.store import SharedMemoryStore
from speedo.storage.tiered_store import TieredStore

AStore = TypeVar("AStore", bound=Store)


def this_machine() -> str:
    """An id of this boot of this machine and of this process's network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{os.stat('/proc/self/ns/net').st_ino}"


def is_near(near: Near) -> bool:
    """Whether this process can use the master's folder and socket: they are enabled, and it is on the same machine.

    While Redis starts again there is no socket, but its directory.
    """
    if near.machine != this_machine():
        return False
    socket = near.socket if os.path.lexists(near.socket) else os.path.dirname(near.socket)
    places = [place for place in (near.folder, socket) if place]
    return bool(places) and all(os.access(place, os.R_OK | os.W_OK) for place in places)


def overlaps(settings: RunSettings) -> bool:
    """Whether a worker in this process gets its next turn ahead (`--overlap`)."""
    return settings.overlap == "all" or (settings.overlap == "far" and not is_near(settings.near))


log_trouble = noting(lambda text: print(text, file=sys.stderr))


def redis_store(url: str, settings: RunSettings, guard: Guard | None = None) -> RedisStore:
    """Redis at a user's own URL, or by its unix socket on the master's machine."""
    near = settings.near
    if near.socket and is_near(near):
        return RedisStore(url_by_socket(url, near.socket), guard=guard)
    return RedisStore(url, ca_pem=settings.redis_ca, guard=guard)


def lease_of(
    settings: RunSettings, address: str, patience_s: float, note: Callable[[str], None]
) -> MasterLease:
    """The lease of a run in its Redis, of a command that others find at `address`."""
    url, ca_pem = settings.redis_url, settings.redis_ca
    return MasterLease(
        RedisStore(url, ca_pem=ca_pem, timeout_s=CALL_S),
        settings.run,
        address,
        patient=RedisStore(url, ca_pem=ca_pem),
        patience=Patience(patience_s, on_trouble=noting(note), has_worked=True),
    )


def fence_of(settings: RunSettings) -> MasterFence | None:
    """What the master's process asks of the run's epoch; None in a run that has no lease."""
    if not settings.leased:
        return None
    store = RedisStore(settings.redis_url, ca_pem=settings.redis_ca)
    return MasterFence(store, settings.run, settings.epoch, patience_s=settings.timeout_s)


def run_store(
    url: str,
    settings: RunSettings,
    on_trouble: Callable[[str | None], object] = log_trouble,
    *,
    to_both: bool = False,
    guard: Guard | None = None,
    has_worked: bool = False,
) -> RetryingStore | TieredStore:
    """The store of a run for a user's URL of Redis, which retries until the run's store timeout.

    Without a URL it is the shared memory of this machine alone. `to_both` is for a master that takes workers from other
    machines: it writes into shared memory and Redis. `guard` is for one that has a lease. `has_worked`: see `Patience`.
    """
    if not url:
        memory = SharedMemoryStore(Path(settings.near.folder))
        return RetryingStore(memory, patience_s=settings.timeout_s, on_trouble=on_trouble)
    far = RetryingStore(
        redis_store(url, settings, guard),
        patience_s=settings.timeout_s,
        on_trouble=on_trouble,
        has_worked=has_worked,
    )
    return by_shared_memory(far, settings.near, to_both=to_both)


def impatient_store(settings: RunSettings) -> Store:
    """The master's store without repetitions."""
    if not settings.redis_url:
        return SharedMemoryStore(Path(settings.near.folder))
    return by_shared_memory(redis_store(settings.redis_url, settings), settings.near)


def server_store(
    address: ServerAddress,
    settings: RunSettings,
    on_trouble: Callable[[str | None], object] = log_trouble,
) -> RetryingStore | TieredStore:
    """The store of one server."""
    near = Near(address.machine, socket=address.socket)
    return run_store(address.url, replace(settings, near=near, redis_ca=address.ca), on_trouble)


def server_stores(
    addresses: Sequence[ServerAddress],
    settings: RunSettings,
    on_trouble: Callable[[str | None], object] = log_trouble,
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


def by_shared_memory(far: AStore, near: Near, *, to_both: bool = False) -> AStore | TieredStore:
    """Put shared memory before this store, if this process has some."""
    if near.by_memory and is_near(near):
        return TieredStore(SharedMemoryStore(Path(near.folder)), far, to_both=to_both)
    return far
