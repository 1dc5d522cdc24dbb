"""Speed of pushing and pulling a vector, of merging, and of an exchange as a whole, beside memcpy and plain redis-py.

    python -m bench.store_speed [--rounds 9] [--megabytes 1.7 53.5]

Push is what a worker and the master do to write a vector: checksum, header, store. Pull is the opposite: read it
into an array that is there, and check it. Plain redis-py has one SET and one GET, without a checksum. A bare TCP
connection is what the kernel carries between two processes, with no server to parse, keep and find. A merge is that
of one payload, of two where a mean is taken; its speed counts the bytes of the payloads. Prints medians in GB/s; all
ways take turns, so that they see the same machine.

An exchange is what two workers and the master of one machine do for a result of one local step, in milliseconds: the
worker publishes its payload, which its solver has left in the store's memory, the master receives it, merges it and
publishes the next version, and the worker copies that into its net. All of it in one thread, without messages.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import redis

from bench.support import table
from bench.support.arguments import parser_for, rounds, size
from bench.support.bare_socket import bare_socket
from bench.support.machine import heading
from bench.support.processes import end_by_signals
from speedo.exchange.served_vectors import Exchange, Sender, Stores
from speedo.exchange.transfer import fetch_vector
from speedo.exchange.vector import Blob, Layout, Vector, as_bytes, header_for
from speedo.master.center import Center
from speedo.messages import Kind, Merge, Part, Trained
from speedo.sgd_modes.rules import AddDelta, AverageDeltas, Contribution, Elastic, MergeRule
from speedo.storage.base import Store
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from speedo.storage.shared_memory.folder import MEMORY
from speedo.storage.shared_memory.store import SharedMemoryStore

SIZES = (1.72, 53.5)  # MB: LeNet, GoogLeNet
MOST_NAIVE_MB = 60.0  # the product's server drops a client that has more of a reply unread
SMALL_MB = 20.0  # below it a call takes less than some ms, and chance weighs more
KEY = "speedo:speed"
MEMCPY = "memcpy"
PARTS = ("publish", "receive", "merge and publish", "load", "delete")
WARM_UP = 6  # exchanges in which memory is made
FIXED_MS, MS_PER_MB = 0.15, 0.25  # the goal for an exchange
MERGES: Mapping[str, tuple[MergeRule, int, float]] = {
    "AddDelta, whole": (AddDelta(), 1, 1.0),
    "AddDelta, scaled": (AddDelta(), 1, 0.5),
    "AverageDeltas of 2": (AverageDeltas(), 2, 1.0),
    "Elastic": (Elastic(), 1, 0.45),
}


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def push(store: Store, layout: Layout, vector: Vector) -> None:
    body = as_bytes(vector)
    header = header_for(body, layout, Kind.CENTER, version=1)
    store.write(KEY, header.pack(), body)


def pull(store: Store, layout: Layout, into: Vector) -> None:
    fetch_vector(store, KEY, layout, Kind.CENTER, into)


def vectors(values: int, count: int) -> list[Vector]:
    random = np.random.default_rng(0)
    return [random.standard_normal(values, np.float32) * np.float32(1e-3) for _ in range(count)]


def measure_stores(
    stores: Mapping[str, Store], naive: redis.Redis, megabytes: float, repeats: int
) -> table.Table:
    """GB/s of push and pull by way; the first round is not counted."""
    layout = Layout((Blob("ip", (round(megabytes * 250_000),)),))
    vector, into = vectors(layout.size, 2)
    times: dict[str, list[tuple[float, float]]] = {}
    with bare_socket(layout.nbytes) as (send, take):
        for _ in range(repeats + 1):
            sent = seconds(lambda: send(as_bytes(vector)))
            times.setdefault("a bare TCP connection", []).append(
                (sent, seconds(lambda: take(as_bytes(into))))
            )
    for _ in range(repeats + 1):
        for name, store in stores.items():
            into.fill(0.0)
            pushed = seconds(lambda store=store: push(store, layout, vector))
            pulled = seconds(lambda store=store: pull(store, layout, into))
            assert np.array_equal(into, vector)
            store.delete(KEY)
            times.setdefault(name, []).append((pushed, pulled))
        if megabytes > MOST_NAIVE_MB:
            continue
        pushed = seconds(lambda: naive.set("naive", as_bytes(vector)))
        pulled = seconds(lambda: np.copyto(into, np.frombuffer(naive.get("naive"), np.float32)))
        naive.delete("naive")
        times.setdefault("redis-py, one key, TCP", []).append((pushed, pulled))
    lines = [[f"{megabytes:g} MB", "push GB/s", "least to most", "pull GB/s", "least to most"]]
    for name, rows in times.items():
        columns = list(zip(*rows[1:], strict=True))
        lines.append(
            [name, *(cell for column in columns for cell in _speed(layout.nbytes, column))]
        )
    return lines


def measure_merges(megabytes: float, repeats: int) -> table.Table:
    """GB/s of payloads merged into a center, and of a copy of it."""
    center, *payloads = vectors(round(megabytes * 250_000), 3)
    copy = np.empty_like(center)
    times: dict[str, list[float]] = {}
    for _ in range(repeats + 1):
        times.setdefault(MEMCPY, []).append(seconds(lambda: np.copyto(copy, center)))
        for name, (rule, count, rate) in MERGES.items():
            given = [Contribution(one, 64) for one in payloads[:count]]
            took = seconds(
                lambda rule=rule, given=given, rate=rate: rule.merge(center, given, rate, 0)
            )
            times.setdefault(name, []).append(took / count)
    lines = [[f"{megabytes:g} MB", "GB/s", "least to most", "of memcpy", "least to most"]]
    for name, seen in times.items():
        ratios = [mine / own for mine, own in zip(times[MEMCPY][1:], seen[1:], strict=True)]
        spread = f"{min(ratios):.0%} to {max(ratios):.0%}"
        share = [f"{statistics.median(ratios):.0%}", spread] if name != MEMCPY else ["", ""]
        lines.append([name, *_speed(center.nbytes, seen[1:]), *share])
    return lines


def measure_exchange(folder: Path, megabytes: float, repeats: int) -> table.Table:
    """Milliseconds of the parts of an exchange over shared memory, and of all."""
    layout = Layout((Blob("ip", (round(megabytes * 250_000),)),))
    given, first, net = vectors(layout.size, 3)
    stores = [SharedMemoryStore(folder) for _ in range(3)]
    center = Center("bench", first, layout, stores[2])
    center.publish()
    workers = [Exchange("bench", layout, [Stores(one)]) for one in stores[:2]]
    held = [0, 0]
    for _ in held:
        center.hold(0)
    times: dict[str, list[float]] = {name: [] for name in PARTS}
    for turn in range(WARM_UP + 2 * repeats):
        worker, ticket, rule = turn % 2, 1 + turn, AddDelta()
        payload = workers[worker].memory_for(worker, ticket)
        assert payload is not None
        np.copyto(payload, given)
        sender = Sender(worker, 1, ticket, held[worker], 0)
        event, version = Trained(worker, 1, ticket, 0.5, 64), center.version + 1
        parts = (Part(worker, 1, ticket, 64, 1, 0.5),)

        def publish(worker=worker, payload=payload, sender=sender) -> None:
            bodies = workers[worker].encode(payload, None)
            workers[worker].publish(sender, Kind.DELTA, bodies)

        def merge(worker=worker, version=version, parts=parts) -> None:
            center.merge(Merge(version, version, 64, 1.0, parts), version - 1)
            center.hold(version)
            center.release(held[worker])
            held[worker] = version

        def load(worker=worker, version=version) -> None:
            seen = workers[worker].look_at_center(version)
            assert seen is not None
            np.copyto(net, seen.vector)
            seen.check()

        receive = partial(center.receive, event, rule)
        calls = (publish, receive, merge, load, center.tidy)
        for name, call in zip(PARTS, calls, strict=True):
            times[name].append(seconds(call))
    assert np.array_equal(net, center.vector)
    rows = list(zip(*(column[WARM_UP:] for column in times.values()), strict=True))
    whole = [1e3 * sum(row) for row in rows]
    lines = [[f"{megabytes:g} MB", "ms", "least to most"]]
    for name, column in zip(PARTS, zip(*rows, strict=True), strict=True):
        lines.append([name, *_milliseconds([1e3 * one for one in column])])
    lines.append(["an exchange", *_milliseconds(whole)])
    lines.append(["the most that is wanted", f"{FIXED_MS + MS_PER_MB * megabytes:.3f}", ""])
    for store in stores:
        store.delete(*store.keys(""))
        store.close()
    return lines


def _milliseconds(times: list[float]) -> list[str]:
    return [f"{statistics.median(times):.3f}", f"{min(times):.3f} to {max(times):.3f}"]


def _speed(nbytes: int, times: list[float] | tuple[float, ...]) -> list[str]:
    speeds = [nbytes / 1e9 / one for one in times]
    return [f"{statistics.median(speeds):.2f}", f"{min(speeds):.2f} to {max(speeds):.2f}"]


def main() -> int:
    parser = parser_for("bench.store_speed", __doc__, default_rounds=9)
    parser.add_argument("--megabytes", nargs="+", type=size, default=list(SIZES), metavar="MB")
    asked = parser.parse_args()
    end_by_signals()
    heading("bench.store_speed")
    write = table.markdown if asked.markdown else table.text
    print(f"medians of {rounds(asked.rounds)}, of more for small vectors")
    with (
        PrivateRedis(unix_socket=True) as server,
        tempfile.TemporaryDirectory(prefix="speedo-bench-", dir=MEMORY) as folder,
    ):
        stores: dict[str, Store] = {
            "store, TCP": RedisStore(server.url),
            "store, unix": RedisStore(server.unix_url),
            "shared memory": SharedMemoryStore(Path(folder)),
        }
        naive = redis.Redis.from_url(server.url)
        for megabytes in asked.megabytes:
            repeats = asked.rounds * max(1, round(SMALL_MB / megabytes))
            print(f"\n{write(measure_stores(stores, naive, megabytes, repeats))}", flush=True)
            print(f"\n{write(measure_merges(megabytes, repeats))}", flush=True)
            print(f"\n{write(measure_exchange(Path(folder), megabytes, repeats))}", flush=True)
        for store in stores.values():
            store.close()
        naive.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
