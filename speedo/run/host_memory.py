"""The memory that the processes of one host share in a run: the newest centers that were fetched there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from speedo.errors import StoreError
from speedo.exchange.host_centers import HostCenters
from speedo.exchange.vector import Layout
from speedo.master.slots import Assignment
from speedo.run.open_store import this_machine
from speedo.run.settings import RunSettings
from speedo.storage.shared_memory.folder import MEMORY, SharedMemory, free_in
from speedo.storage.shared_memory.locks import SharedLocks
from speedo.storage.shared_memory.store import SharedMemoryStore

ROOM: Final = 4  # models: two versions, one that is being written, and one in reserve


@contextmanager
def with_host_memory(settings: RunSettings) -> Iterator[RunSettings]:
    """The settings with a folder in memory, where the host's processes need one; it goes at the end."""
    if settings.near.machine == this_machine() and not settings.serves:
        yield settings  # the center itself is in shared memory there
        return
    with SharedMemory(0) as memory:
        yield replace(settings, host_memory=str(memory.path or ""))


def host_centers(settings: RunSettings, place: Assignment, layout: Layout) -> HostCenters | None:
    """How a worker shares its centers with the other workers of its host; None if there is no memory for it."""
    folder = settings.host_memory
    if not folder:
        return None
    here = this_machine()
    try:
        if free_in(Path(folder)) < ROOM * layout.nbytes:
            print(f"{folder} has little room: workers fetch by themselves", file=sys.stderr)
            return None
    except OSError:
        return None
    machines = [one.machine for one in place.servers] or [settings.near.machine]
    far = [machine != here for machine in machines]
    return HostCenters(partial(open_range, Path(folder)), far)


def too_little_memory(settings: RunSettings, needed: int) -> str:
    """Says that the memory of a run's exchange lacks this many bytes; empty if it has them, or is not used."""
    near = settings.near
    if not near.by_memory or settings.serves:
        return ""
    free = free_in(Path(near.folder))
    if free >= needed:
        return ""
    return f"{MEMORY} has {free / 1e6:,.1f} MB free, but a run with this model takes up to {needed / 1e6:,.1f} MB"


def open_range(folder: Path, start: int) -> tuple[SharedMemoryStore, SharedLocks]:
    """The part of a host's memory for the range that begins at this value. Raises `StoreError`."""
    try:
        return SharedMemoryStore(folder), SharedLocks(folder / f".locks.{start}")
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror or error}") from None
