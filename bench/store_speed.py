"""Speed of the store through a private Redis, beside one naive SET and GET of redis-py.

    python bench/store_speed.py [--repeats 9]

Prints medians in GB/s. All ways take turns in one run, so that they see the same machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import redis

from speedo.storage import PrivateRedis, RedisStore

SIZES = {"LeNet, 1.7 MB": 1_724_320, "GoogLeNet, 53.5 MB": 53_513_824}


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(server: PrivateRedis, size: int, repeats: int) -> dict[str, tuple[float, float]]:
    """GB/s of write and read by way, medians."""
    body = np.random.default_rng(0).bytes(size)
    into = np.empty(size, np.uint8)
    stores = {"store, TCP": RedisStore(server.url), "store, unix": RedisStore(server.unix_url)}
    naive = redis.Redis.from_url(server.url)
    times: dict[str, list[tuple[float, float]]] = {}
    for _ in range(repeats + 1):
        for name, store in stores.items():
            write = seconds(lambda store=store: store.write("speedo:speed", b"h", memoryview(body)))
            read = seconds(lambda store=store: store.read("speedo:speed", memoryview(into)))
            assert into.tobytes() == body
            store.delete("speedo:speed")
            times.setdefault(name, []).append((write, read))
        write = seconds(lambda: naive.set("naive", body))
        read = seconds(lambda: np.copyto(into, np.frombuffer(naive.get("naive"), np.uint8)))
        naive.delete("naive")
        times.setdefault("redis-py, one key, TCP", []).append((write, read))
    return {
        name: tuple(
            size / statistics.median(column) / 1e9 for column in zip(*rows[1:], strict=True)
        )
        for name, rows in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    print(f"{'':26}{'write GB/s':>12}{'read GB/s':>12}   (medians of {repeats})")
    with PrivateRedis(unix_socket=True) as server:
        for label, size in SIZES.items():
            print(label)
            for name, (write, read) in measure(server, size, repeats).items():
                print(f"  {name:24}{write:12.2f}{read:12.2f}")


if __name__ == "__main__":
    main()
