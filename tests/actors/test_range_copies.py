"""A range out of a host's memory: the newest that can be had, through the store of the new server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from speedo.actors import range_copies
from speedo.actors.range_copies import Place, RangeCopies
from speedo.errors import StoreError
from speedo.exchange.ranges import ranges_of
from speedo.exchange.vector import Blob, Layout, as_bytes, header_for
from speedo.master.slots import ServerAddress
from speedo.messages import Kind
from speedo.run.host_memory import HostCopies
from speedo.storage import PrivateRedis, RedisStore, keys
from speedo.storage.redis.users import Access
from speedo.storage.shared_memory.folder import SharedMemory
from speedo.storage.shared_memory.store import SharedMemoryStore

pytestmark = pytest.mark.redis
RUN = "ab:0"
RANGE = ranges_of(Layout((Blob("w/0", (400,)),)), 2)[1]
START = RANGE.place.start


class Host(threading.Thread):
    """A host that says what it has, and brings what it is told to; `fails` says that it cannot."""

    def __init__(
        self, copies: RangeCopies, name: str, folder: Path, *, fails: str = "", silent: bool = False
    ) -> None:
        super().__init__(daemon=True)
        self.copies, self.host, self.folder = copies, name, folder
        self.fails, self.silent = fails, silent
        self.refused = ""
        self.over = threading.Event()
        self.brought = 0

    def leave(self, version: int, *, damaged: bool = False) -> None:
        vector = np.full(RANGE.layout.size, version, np.float32)
        header = header_for(as_bytes(vector), RANGE.layout, Kind.CENTER, version=version)
        vector[0] += damaged
        with closing(SharedMemoryStore(self.folder)) as store:
            store.write(keys.copy(RUN, START, version), header.pack(), as_bytes(vector))

    def run(self) -> None:
        memory, done = HostCopies(RUN, str(self.folder)), 0
        while not self.over.wait(0.02):
            order, _ = self.copies.tell(self.host, memory.newest())
            if order is None or order.number == done or self.silent:
                continue
            done = order.number
            if not self.fails:
                with closing(RedisStore(order.address.url)) as target:
                    memory.copy_to(target, order.start, order.version)
                    try:
                        target.read_head(keys.center(RUN, 1))
                    except StoreError as error:
                        self.refused = str(error)
                self.brought += 1
            self.copies.brought(order.number, self.fails)


@pytest.fixture(scope="module")
def redis() -> Iterator[PrivateRedis]:
    with PrivateRedis(unix_socket=True) as running:
        yield running


@pytest.fixture
def place(redis: PrivateRedis) -> Iterator[Place]:
    access = Access(redis.url, RUN, saved=True)
    with closing(access), closing(RedisStore(redis.url)) as store:
        yield Place(RANGE, ServerAddress(redis.url), access, store)


@pytest.fixture
def folders() -> Iterator[list[Path]]:
    with SharedMemory(0) as one, SharedMemory(0) as two:
        assert one.path is not None
        assert two.path is not None
        yield [one.path, two.path]


def found_of(
    copies: RangeCopies, hosts: list[Host], place: Place, after: int
) -> Mapping[str, float] | None:
    for host in hosts:
        host.start()
    while not {host.host for host in hosts} <= copies._told.keys():
        time.sleep(0.01)
    found = copies.newest(place, after)
    for host in hosts:
        host.over.set()
        host.join()
    assert place.store.keys(keys.all_copies(RUN)) == []
    if found is None:
        return None
    assert (found.vector == found.vector[0]).all()
    return {found.host: float(found.vector[0])}


def test_the_newest_comes_by_a_user_who_may_do_nothing_else(
    place: Place, folders: list[Path]
) -> None:
    copies = RangeCopies(RUN, "none")
    hosts = [Host(copies, name, folder) for name, folder in zip("ab", folders, strict=True)]
    hosts[0].leave(7)
    hosts[1].leave(8)
    hosts[1].leave(9)
    assert found_of(copies, hosts, place, 5) == {"b": 9.0}
    assert [one.brought for one in hosts] == [0, 1]
    assert "NOPERM" in hosts[1].refused or "No permissions" in hosts[1].refused
    left = place.store.administer("ACL", "USERS")  # type: ignore[attr-defined]
    assert [name for name in left if b"-h" in name] == []


def test_what_is_not_newer_than_the_masters_own_is_left_alone(
    place: Place, folders: list[Path]
) -> None:
    copies = RangeCopies(RUN, "none")
    host = Host(copies, "a", folders[0])
    host.leave(7)
    assert found_of(copies, [host], place, 7) is None
    assert host.brought == 0


@pytest.mark.parametrize("how", ["fails", "damaged", "silent"])
def test_the_next_host_is_asked_where_the_first_cannot(
    place: Place, folders: list[Path], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_copies, "BRING_S", 0.5)
    copies = RangeCopies(RUN, "none")
    first = Host(
        copies, "a", folders[0], fails="no room" if how == "fails" else "", silent=how == "silent"
    )
    first.leave(9, damaged=how == "damaged")
    second = Host(copies, "b", folders[1])
    second.leave(8)
    assert found_of(copies, [first, second], place, 5) == {"b": 8.0}


def test_a_host_that_has_said_nothing_for_long_is_not_waited_for(
    place: Place, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_copies, "TELL_S", 0.2)
    copies = RangeCopies(RUN, "none")
    copies.tell("gone", {START: 99})
    time.sleep(0.3)
    host = Host(copies, "a", folders[0])
    host.leave(8)
    assert found_of(copies, [host], place, 5) == {"a": 8.0}
