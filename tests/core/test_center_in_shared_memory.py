"""A center over shared memory: payloads are merged where they lie, versions are made where they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from speedo.center import Center
from speedo.compression import NO_COMPRESSION, Compression
from speedo.messages import Drop
from speedo.storage import keys
from speedo.storage.shared_memory_store import SharedMemoryStore
from speedo.vectors_in_store import fetch_vector
from speedo.weights import Blob, Kind, Layout
from tests.core.test_center import EVENT, RULE, merge, published, send


def test_a_payload_that_is_held_where_it_lies_outlasts_its_late_repetition(tmp_path: Path) -> None:
    """The file of a deleted payload is taken for the next one, which must not be merged in its place."""
    layout = Layout((Blob("w/0", (50_000,)),))
    store = SharedMemoryStore(tmp_path)
    center = Center("run", layout.zeros(), layout, store)
    center.publish()
    send(center, np.full(50_000, 2.0, np.float32), layout=layout)
    assert center.receive(EVENT, RULE) == EVENT
    center.drop(Drop(2, 1, 5, "late", "its ticket is not outstanding"))
    center.tidy()
    other = SharedMemoryStore(tmp_path)
    other.write(keys.payload("run", 2, 6), b"", memoryview(bytes(200_000)))
    center.merge(merge(), 0)
    assert center.vector.tolist() == [2.0] * 50_000
    assert published(center) == ["center:1", "payload:2:6"]


@pytest.mark.parametrize("compression", [NO_COMPRESSION, Compression(center="bfloat16")])
def test_what_is_published_in_shared_memory_is_the_merged_center(
    tmp_path: Path, compression: Compression
) -> None:
    """It is made there while it is merged."""
    layout = Layout((Blob("w/0", (50_000,)),))
    store = SharedMemoryStore(tmp_path)
    center = Center("run", layout.zeros(), layout, store, compression=compression)
    center.publish()
    for version in (1, 2, 3):
        vector = np.linspace(-version, 3, 50_000, dtype=np.float32)
        send(center, vector, layout=layout)
        center.receive(EVENT, RULE)
        center.merge(merge(version), 0)
        found = layout.zeros()
        key = keys.center("run", version)
        header = fetch_vector(SharedMemoryStore(tmp_path), key, layout, Kind.CENTER, found)
        assert header.version == version
        assert found.tobytes() == center.vector.tobytes()
    forms = len(center._forms)
    assert len(published(center)) == forms
