"""Centers that the workers of a host share: fetched once, never stale or damaged, and nobody waits for the dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from speedo.errors import MissingKeyError
from speedo.exchange import host_centers
from speedo.exchange.codecs import Compression, make_codec
from speedo.exchange.host_centers import HostCenters, versions_of
from speedo.exchange.ranges import ranges_of
from speedo.exchange.served_vectors import Exchange, Stores
from speedo.exchange.vector import Blob, Layout, Vector, header_for
from speedo.messages import Kind
from speedo.run.host_memory import open_range
from speedo.storage import keys
from speedo.storage.base import Arrived
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from speedo.storage.shared_memory.folder import SharedMemory
from speedo.storage.shared_memory.locks import SharedLocks
from speedo.storage.shared_memory.store import SharedMemoryStore

SIZE = 40_000  # 160 KB: files of shared memory are mapped and used again
LAYOUT = Layout((Blob("w/0", (SIZE,)),))


class Counting(RedisStore):
    """A connection to Redis that counts the bodies that it fetched, each after a pause."""

    fetched, heads, pause_s = 0, 0, 0.0

    def read(self, key: str, into: memoryview, arrived: Arrived | None = None) -> bytes:
        self.fetched += 1
        time.sleep(self.pause_s)
        return super().read(key, into, arrived)

    def read_head(self, key: str) -> tuple[bytes, int]:
        self.heads += 1
        return super().read_head(key)


@pytest.fixture(scope="module")
def redis() -> Iterator[PrivateRedis]:
    with PrivateRedis(unix_socket=True) as running:
        yield running


@pytest.fixture
def folder() -> Iterator[Path]:
    with SharedMemory(1 << 20) as memory:
        assert memory.path is not None
        yield memory.path


class Host:
    """Workers of one host, whose `ranges` come from a Redis each at worst."""

    def __init__(
        self,
        folder: Path,
        redis: PrivateRedis,
        ranges: int = 1,
        compression: Compression = Compression(),  # noqa: B008
        run: str = "run",
    ) -> None:
        self.folder, self.redis, self.compression, self.run = folder, redis, compression, run
        self.ranges = ranges
        self.master = Exchange(run, LAYOUT, [Stores(self.range(at)) for at in range(ranges)])

    def range(self, at: int) -> Counting:
        """The servers of all ranges are databases of one Redis."""
        return Counting(self.redis.url[:-1] + str(at))

    def worker(self, *, far: bool = True) -> Worker:
        return Worker(self, far)

    def publish(self, version: int, value: float | None = None) -> Vector:
        """Version `version` is published, in the form that workers fetch too; returns it."""
        center = np.full(SIZE, version if value is None else value, np.float32)
        self.master.publish_center(version, 0, center)
        if self.compression.center != "none":
            for at, one in enumerate(ranges_of(LAYOUT, self.ranges)):
                codec = make_codec(self.compression.center, one.layout)
                body = codec.encode(center[one.place])
                header = header_for(
                    body, one.layout, Kind.CENTER, version=version, dtype=codec.dtype
                )
                self.range(at).write(keys.rounded(self.run, version), header.pack(), body)
        return center


class Worker:
    def __init__(self, host: Host, far: bool) -> None:
        self.stores = [host.range(at) for at in range(host.ranges)]
        self.center = np.zeros(SIZE, np.float32)
        centers = HostCenters(partial(open_range, host.folder), [far] * host.ranges)
        self.exchange = Exchange(
            host.run, LAYOUT, [Stores(one) for one in self.stores], host.compression, host=centers
        )

    def fetch(self, version: int) -> float:
        """The one value of that version."""
        self.exchange.fetch_center(version, self.center)
        assert (self.center == self.center[0]).all()
        return float(self.center[0])

    @property
    def fetched(self) -> int:
        return sum(one.fetched for one in self.stores)

    def close(self) -> None:
        self.exchange.close()
        for one in self.stores:
            one.close()


@pytest.mark.processes
@pytest.mark.parametrize("ranges", [1, 3])
@pytest.mark.parametrize("center", ["none", "bfloat16"])
def test_a_version_is_fetched_once_for_the_workers_of_a_host(
    folder: Path, redis: PrivateRedis, ranges: int, center: str
) -> None:
    host = Host(folder, redis, ranges, Compression("none", center))
    workers = [host.worker() for _ in range(3)]
    for version in (1, 2, 3, 4):
        host.publish(version)
        assert [one.fetch(version) for one in workers] == [version] * 3
    assert [one.fetched for one in workers] == [4 * ranges, 0, 0]
    for one in ranges_of(LAYOUT, ranges):
        store, _ = open_range(folder, one.place.start)
        assert versions_of(store, "run", one.place.start) == [3, 4]


@pytest.mark.processes
def test_copies_of_a_former_masters_epoch_go_with_the_first_of_the_next(
    folder: Path, redis: PrivateRedis
) -> None:
    """They stayed to the end of the run: two centers in the memory of each host for every takeover."""
    for epoch in (0, 1, 2):
        host = Host(folder, redis, 2, run=f"former:{epoch}")
        workers = [host.worker(), host.worker()]
        for version in (5, 6):
            host.publish(version)
            assert [one.fetch(version) for one in workers] == [version] * 2
        for one in workers:
            one.close()
        store = SharedMemoryStore(folder)
        assert {keys.epoch_of("former", key) for key in store.keys("")} == {epoch}
        store.close()


@pytest.mark.processes
def test_whoever_comes_while_a_version_is_fetched_waits_for_it(
    folder: Path, redis: PrivateRedis
) -> None:
    host = Host(folder, redis, 2)
    workers = [host.worker() for _ in range(4)]
    for one in workers:
        for store in one.stores:
            store.pause_s = 0.3
    host.publish(1)
    found: list[float] = []
    threads = [
        threading.Thread(target=lambda one=one: found.append(one.fetch(1))) for one in workers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1.0] * 4
    assert sum(one.fetched for one in workers) == 2  # once each range


@pytest.mark.processes
def test_different_versions_do_not_wait_for_each_other(folder: Path, redis: PrivateRedis) -> None:
    host = Host(folder, redis)
    slow, quick = host.worker(), host.worker()
    slow.stores[0].pause_s = 1.5
    host.publish(1)
    host.publish(2)
    thread = threading.Thread(target=slow.fetch, args=(1,))
    thread.start()
    assert quick.fetch(2) == 2
    assert thread.is_alive()
    thread.join()


@pytest.mark.processes
def test_one_worker_alone_shares_nothing_and_asks_for_no_head(
    folder: Path, redis: PrivateRedis
) -> None:
    host = Host(folder, redis)
    worker, other = host.worker(), host.worker()
    other.close()
    host.publish(1)
    assert worker.fetch(1) == 1
    assert [one.name for one in folder.iterdir()] == [".locks.0"]
    assert worker.stores[0].heads == 0


@pytest.mark.processes
def test_what_is_near_is_not_shared(folder: Path, redis: PrivateRedis) -> None:
    host = Host(folder, redis)
    workers = [host.worker(far=False) for _ in range(2)]
    host.publish(1)
    assert [one.fetch(1) for one in workers] == [1, 1]
    assert [one.fetched for one in workers] == [1, 1]


@pytest.mark.processes
def test_a_version_that_was_published_anew_is_never_served_as_it_was(
    folder: Path, redis: PrivateRedis
) -> None:
    """As after a server that was lost: the center goes back, under the present number."""
    host = Host(folder, redis)
    first, second = host.worker(), host.worker()
    host.publish(1)
    assert first.fetch(1) == 1
    host.publish(1, 0.5)
    assert second.fetch(1) == 0.5
    assert first.fetch(1) == 0.5
    assert [first.fetched, second.fetched] == [1, 1]


@pytest.mark.processes
def test_a_version_that_its_server_has_no_more_is_not_served(
    folder: Path, redis: PrivateRedis
) -> None:
    host = Host(folder, redis)
    first, second = host.worker(), host.worker()
    host.publish(1)
    assert first.fetch(1) == 1
    host.range(0).delete(keys.center("run", 1))
    with pytest.raises(MissingKeyError):
        second.fetch(1)


@pytest.mark.processes
@pytest.mark.parametrize("where", [0, -1])
def test_a_damaged_copy_is_fetched_instead(folder: Path, redis: PrivateRedis, where: int) -> None:
    host = Host(folder, redis)
    first, second = host.worker(), host.worker()
    host.publish(1)
    assert first.fetch(1) == 1
    (kept,) = [one for one in folder.iterdir() if not one.name.startswith(".")]
    with kept.open("r+b") as file:
        file.seek(where and kept.stat().st_size - 1)
        file.write(b"x")
    assert second.fetch(1) == 1
    assert second.fetched == 1


@pytest.mark.processes
def test_memory_that_is_gone_or_full_costs_a_fetch(
    folder: Path, redis: PrivateRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(folder, redis)
    first, second = host.worker(), host.worker()
    for one in folder.iterdir():
        one.unlink()
    folder.rmdir()
    host.publish(1)
    assert [first.fetch(1), second.fetch(1)] == [1, 1]
    assert [first.fetched, second.fetched] == [1, 1]


HOLDER = """
import sys, time
from pathlib import Path
from speedo.storage.shared_memory.locks import SharedLocks
locks = SharedLocks(Path(sys.argv[1]))
with locks.held(int(sys.argv[2]), 1.0) as mine:
    print(mine, flush=True)
    time.sleep(60)
"""


@pytest.mark.processes
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_killed_or_stopped_while_it_fetches_blocks_nobody(
    folder: Path, redis: PrivateRedis, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    monkeypatch.setattr(host_centers, "WAIT_S", 1.0)
    host = Host(folder, redis)
    workers = [host.worker() for _ in range(2)]
    host.publish(7)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder / ".locks.0"), "8"],
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        timer = threading.Timer(0.3, os.kill, (holder.pid, how))
        timer.start()
        began = time.monotonic()
        assert workers[0].fetch(7) == 7
        waited = time.monotonic() - began
        assert waited > 0.2
        assert workers[1].fetch(7) == 7
        assert [one.fetched for one in workers] == [1, 0]
        holder.kill()
    if how == signal.SIGSTOP:
        assert waited > 0.9


@pytest.mark.processes
def test_an_unfinished_copy_of_a_killed_worker_is_swept(folder: Path, redis: PrivateRedis) -> None:
    host = Host(folder, redis)
    workers = [host.worker() for _ in range(2)]
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True, check=True, text=True)  # fmt: skip
    left = folder / f".{int(dead.stdout)}.1"
    left.write_bytes(bytes(100_000))
    host.publish(1)
    assert [one.fetch(1) for one in workers] == [1, 1]
    assert not left.exists()


@pytest.mark.processes
@pytest.mark.parametrize("seed", range(3))
def test_many_workers_and_versions_at_once_get_what_they_asked_for(
    folder: Path, redis: PrivateRedis, seed: int
) -> None:
    """And there are never more than two versions in memory, with one spare file."""
    host = Host(folder, redis, 2)
    for version in range(1, 13):
        host.publish(version)
    wrong: list[tuple[int, float]] = []
    most: list[int] = []

    def work(worker: Worker, number: int) -> None:
        chance = np.random.default_rng((seed, number))
        version = 1
        for _ in range(40):
            version = min(12, version + int(chance.integers(0, 2)))
            found = worker.fetch(version)
            if found != version:
                wrong.append((version, found))

    workers = [host.worker() for _ in range(4)]
    threads = [
        threading.Thread(target=work, args=(one, number)) for number, one in enumerate(workers)
    ]
    for thread in threads:
        thread.start()
    watched = [open_range(folder, one.place.start)[0] for one in ranges_of(LAYOUT, 2)]
    starts = [one.place.start for one in ranges_of(LAYOUT, 2)]
    while any(thread.is_alive() for thread in threads):
        most += [
            len(versions_of(store, "run", start))
            for store, start in zip(watched, starts, strict=True)
        ]
        time.sleep(0.001)
    assert wrong == []
    assert max(most) == 2
    assert sum(one.fetched for one in workers) < 4 * 40 * 2
    assert len([one for one in folder.iterdir() if one.name.startswith(".spare")]) <= 2 * 2


@pytest.mark.processes
def test_the_closed_have_no_say(folder: Path) -> None:
    first, second = (SharedLocks(folder / ".locks.0") for _ in range(2))
    assert first.have_others()
    with first.held(5, 0.0) as mine, second.held(5, 0.05) as theirs, second.held(6, 0.0) as other:
        assert (mine, theirs, other) == (True, False, True)
    with second.held(5, 0.0) as mine:
        assert mine
    second.close()
    second.close()
    assert not first.have_others()
