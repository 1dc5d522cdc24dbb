"""What a rule or a solver keeps is there before its center is, and so is that of the version before."""

from __future__ import annotations

import numpy as np
import pytest

from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import MissingKeyError
from speedo.master.center import Center
from speedo.master.kept_state import KeptState, fetch_kept
from speedo.sgd_modes.rules import State
from speedo.storage import keys
from speedo.storage.memory_store import MemoryStore

SIZE = 4


def a_center(store: MemoryStore) -> Center:
    layout = QuadraticEngine(SIZE).layout
    return Center("run:1", layout.zeros(), layout, store, epoch=1)


def kept_versions(store: MemoryStore) -> list[int]:
    stem = keys.rule_state("run:1", 0)[:-1]
    return sorted(int(key.removeprefix(stem)) for key in store.keys(stem))


def test_that_of_the_last_two_versions_is_kept_and_comes_back() -> None:
    store = MemoryStore()
    center = a_center(store)
    center.state = State("outer-momentum", {"momentum": np.zeros(SIZE, np.float32)}, {"merges": 0})
    kept = KeptState(center, lambda: [b"history of ", b"%d" % center.version])
    for version in range(5):
        center.version = version
        center.state.vectors["momentum"][:] = version
        center.state.numbers["merges"] = version
        kept.publishing()
        kept.publishing()  # as where the store had lost it
        assert kept_versions(store) == list(range(max(0, version - 1), version + 1))
    for version in (3, 4):
        rule, history = fetch_kept(store, "run:1", version)
        state = State.unpack(rule, SIZE)
        assert state.vectors["momentum"].tolist() == [version] * SIZE
        assert state.numbers == {"merges": version}
        assert history == b"history of %d" % version
    with pytest.raises(MissingKeyError):
        fetch_kept(store, "run:1", 2)


def test_a_run_without_such_a_state_writes_nothing() -> None:
    store = MemoryStore()
    kept = KeptState(a_center(store))
    kept.publishing()
    assert not kept
    assert store.keys("") == []
