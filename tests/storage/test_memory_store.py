from __future__ import annotations

import subprocess
import sys

import pytest

from speedo.storage.memory_store import MemoryStore


def test_what_expired_is_removed_even_if_nobody_asks_for_it():
    now = [0.0]
    store = MemoryStore(clock=lambda: now[0])
    for i in range(10_000):
        now[0] = float(i)
        store.write(f"k{i}", b"", memoryview(b"x"), expire_s=10)
    assert len(store._blobs) <= 2_000


def test_the_clock_is_not_read_for_blobs_without_expiry():
    def clock() -> float:
        raise AssertionError("read")

    store = MemoryStore(clock=clock)
    store.write("k", b"h", memoryview(b"x"))
    assert store.read("k", memoryview(bytearray(1))) == b"h"


@pytest.mark.processes
def test_the_package_imports_no_redis_for_a_memory_store():
    code = "import sys, speedo.storage.memory_store as s; s.MemoryStore(); assert 'redis' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
