"""Who removes which keys of a run from the store at its end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from speedo.errors import FencedError
from speedo.run.run_parts import RunParts
from speedo.run_dir.fence import Fence, claim
from speedo.storage import keys
from speedo.storage.memory_store import MemoryStore

RUN = "ab12"
OTHERS = ("speedo:ab123:0:center:1", "speedo:ab12", "speedo:cd34:7:center:1")


def cleaned_by(epoch: int, run_dir: Path, store: MemoryStore) -> None:
    parts: Any = SimpleNamespace(
        store=store,
        settings=SimpleNamespace(run=RUN, epoch=epoch),
        fence=Fence(run_dir, epoch, lambda: 0.0),
    )
    RunParts.clean_store(parts)


def store_of(*epochs: int) -> MemoryStore:
    store = MemoryStore()
    for epoch in epochs:
        run = f"{RUN}:{epoch}"
        for key in (keys.center(run, 3), keys.payload(run, 0, 7), keys.state(run, 1, 3)):
            store.write(key, b"", memoryview(b"x"))
    for key in OTHERS:
        store.write(key, b"", memoryview(b"x"))
    return store


def epochs_in(store: MemoryStore) -> set[int]:
    found = set(store.keys("speedo:"))
    assert found >= set(OTHERS)
    return {keys.epoch_of(RUN, key) for key in found - set(OTHERS)}


def test_a_fenced_master_removes_nothing(tmp_path: Path) -> None:
    """It removed all keys of the run, those of its successor among them, which then waited for its center."""
    claim(tmp_path)
    store = store_of(0, 1)
    with pytest.raises(FencedError):
        cleaned_by(0, tmp_path, store)
    assert epochs_in(store) == {0, 1}


def test_a_master_that_cannot_know_whether_it_is_fenced_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / "epoch").write_text("?")
    store = store_of(0, 1)
    with pytest.raises(FencedError):
        cleaned_by(0, tmp_path, store)
    assert epochs_in(store) == {0, 1}


def test_a_master_removes_its_own_keys_and_those_of_the_masters_before_it(tmp_path: Path) -> None:
    """Not those of a later one, which may claim the run at this very moment."""
    for _ in range(10):
        claim(tmp_path)
    store = store_of(0, 1, 9, 10, 11, 100)
    cleaned_by(10, tmp_path, store)
    assert epochs_in(store) == {11, 100}
