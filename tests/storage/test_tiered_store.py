"""Which of its two stores a `TieredStore` uses, and what it does when one of them fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedo.errors import MissingKeyError, StoreUnavailableError
from speedo.storage.base import Store
from speedo.storage.memory_store import MemoryStore
from speedo.storage.shared_memory.store import SharedMemoryStore
from speedo.storage.tiered_store import TieredStore


class Full(SharedMemoryStore):
    """A memory without room."""

    full = False

    def write(
        self, key: str, head: bytes, body: memoryview, *, expire_s: float | None = None
    ) -> None:
        if self.full:
            raise StoreUnavailableError("full")
        super().write(key, head, body, expire_s=expire_s)


def put(store: Store, key: str, body: bytes) -> None:
    store.write(key, b"head", memoryview(body))


def get(store: Store, key: str) -> bytes:
    into = bytearray(store.read_head(key)[1])
    store.read(key, memoryview(into))
    return bytes(into)


@pytest.fixture
def near(tmp_path: Path) -> Full:
    return Full(tmp_path)


def test_near_blobs_stay_near(near: Full) -> None:
    far = MemoryStore()
    store = TieredStore(near, far)
    put(store, "k", b"body")
    assert far.keys("") == []
    assert get(store, "k") == b"body"


def test_what_is_far_alone_is_found_and_deleted_there(near: Full) -> None:
    far = MemoryStore()
    store = TieredStore(near, far)
    put(far, "payload", b"of a worker far away")
    assert get(store, "payload") == b"of a worker far away"
    assert store.keys("") == ["payload"]
    store.delete("payload")
    assert far.keys("") == []


def test_a_store_that_writes_to_both_deletes_from_both(near: Full) -> None:
    far = MemoryStore()
    store = TieredStore(near, far, to_both=True)
    put(store, "center:1", b"one")
    assert get(far, "center:1") == get(near, "center:1") == b"one"
    store.delete("center:1")
    assert far.keys("") == near.keys("") == []


def test_a_payload_that_is_near_alone_is_read_there_by_a_store_that_writes_to_both(
    near: Full,
) -> None:
    far = MemoryStore()
    store = TieredStore(near, far, to_both=True)
    put(near, "payload", b"of a worker on this machine")
    assert get(store, "payload") == b"of a worker on this machine"
    store.delete("payload")
    assert near.keys("") == []


def test_a_loss_of_the_far_copy_is_seen_by_who_wrote_it(near: Full) -> None:
    """The master looks whether its center is still there for all."""
    far = MemoryStore()
    store = TieredStore(near, far, to_both=True)
    put(store, "center:1", b"one")
    far.delete("center:1")
    with pytest.raises(MissingKeyError):
        store.read("center:1", memoryview(bytearray(3)))
    put(store, "center:1", b"one")
    assert get(far, "center:1") == b"one"


def test_a_full_memory_is_passed_over(near: Full) -> None:
    far = MemoryStore()
    store, reader = TieredStore(near, far), TieredStore(near, far)
    put(store, "k", b"former")
    near.full = True
    put(store, "k", b"newer")
    assert get(reader, "k") == get(far, "k") == b"newer"
    reader.delete("k")
    assert far.keys("") == near.keys("") == []
